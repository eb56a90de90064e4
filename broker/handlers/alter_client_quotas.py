"""AlterClientQuotas, v0 to v1.

Behaviour: validates quotas as Kafka does, stores them over restarts, and enforces them from this answer on
(broker.quota.quota_manager). All entries that are not refused are stored in one commit (KIP-546).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from broker.metadata.change import Change, Entity
from broker.metadata.changes import QUOTAS, Planned
from broker.metadata.staged import Staged
from broker.now import Now
from broker.quota.client_quotas import Quotas, altered, check_entity
from broker.security.authorization.acl import CLUSTER_NAME, Operation, ResourceType
from broker.security.authorization.audit_log import shown
from broker.security.authorization.rights import AUTHORIZATION_FAILED, may
from broker.services.context import RequestContext
from broker.steps import LazyArray
from broker.waiting.purgatory import Delayed
from broker.wire.errors import ApiError, ErrorCode

Answer = tuple[ErrorCode, str | None]


def handle(call: RequestContext, now: Now) -> dict[str, Any] | Delayed[dict[str, Any]]:
    if not may(call.rights, Operation.ALTER_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME):
        denied = AUTHORIZATION_FAILED[ResourceType.CLUSTER]
        return _answer(call, [(denied.code, denied.message)] * len(call.request.entries))
    if call.request.validate_only:
        return _answer(call, _check(call)[1])
    return call.services.changes.submit((QUOTAS,), lambda at: _begin(call), now)


def _check(call: RequestContext) -> tuple[Quotas, list[Answer]]:
    """Return the quotas as the request wants them, and its answers."""
    entities = _entities(call)
    named = Counter(entities)
    quotas = dict(call.services.metadata.quotas)  # copied once, because a request may have thousands of entries
    most = call.services.config.max_client_quotas
    answers: list[Answer] = []
    for entry, parts in zip(call.request.entries, entities, strict=True):
        try:
            if named[parts] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, "an entity stands in a request once; this one does not")
            _alter(quotas, check_entity(parts), entry.ops, most, len(call.services.metadata.quotas))
            answers.append((ErrorCode.NONE, None))
        except ApiError as error:
            answers.append((error.code, error.message))
    return quotas, answers


def _begin(call: RequestContext) -> dict[str, Any] | Planned:
    quotas, answers = _check(call)
    if quotas == call.services.metadata.quotas:
        return _answer(call, answers)

    staged, before = Staged(Change(quotas=quotas)), call.services.metadata.quotas

    def note() -> None:
        names = (_shown(entity) for entity in quotas.keys() | before.keys() if quotas.get(entity) != before.get(entity))
        call.note_change("altered quotas of ", sorted(names), staged.error, without_authorizer=True)

    staged.on_end = note

    def answer(error: ApiError | None, at: Now) -> dict[str, Any]:
        if error is None:
            return _answer(call, answers)
        return _answer(call, [result if result[0] else (error.code, error.message) for result in answers])

    return Planned(staged, answer)


def _shown(entity: Entity) -> str:
    """Return an entity as text: "user ann client-id shop", for example."""
    return " ".join(f"{kind} {'<default>' if name is None else shown(name)}" for kind, name in entity)


def _entities(call: RequestContext) -> list[tuple[tuple[str, str | None], ...]]:
    return [tuple((part.entity_type, part.entity_name) for part in entry.entity) for entry in call.request.entries]


def _answer(call: RequestContext, answers: Sequence[Answer]) -> dict[str, Any]:
    return {"throttle_time": 0, "entries": LazyArray(list(zip(_entities(call), answers, strict=True)), _entry)}


def _entry(result: tuple[tuple[tuple[str, str | None], ...], Answer]) -> dict[str, Any]:
    parts, (code, message) = result
    return {"error_code": code, "error_message": message, "entity": [_part(*part) for part in parts]}


def _part(kind: str, name: str | None) -> dict[str, Any]:
    return {"entity_type": kind, "entity_name": name}


def _alter(
    quotas: dict[Entity, Mapping[str, float]], entity: Entity, operations: Iterable[Any], most: int, before: int
) -> None:
    """Alter the quotas of one entity. Raise ApiError, with nothing changed.

    `most` entities may have quotas, or as many as `before` the request, if the setting was lowered since.
    """
    values = altered(quotas.get(entity, {}), entity, operations)
    if values and entity not in quotas and len(quotas) >= max(most, before):
        raise ApiError(ErrorCode.POLICY_VIOLATION, f"there are quotas enough: flakelog.max.client.quotas is {most}")
    quotas.pop(entity, None)
    if values:
        quotas[entity] = values  # the latest is the last
