"""Carries out changes of a cluster's metadata: the controller decides on topics, any broker writes settings.

    topics created, grown, deleted   by the controller, if this broker is it
    topics created by asking         written by this broker itself, as by Kafka; the controller watches the topics
    settings, quotas, credentials    written by this broker, beside a notification for all brokers
    access rules                     the same
    producer ids                     a block of the controller

A change has ended once the coordinator has it and this broker's image shows it, or SHOWN_MS after the coordinator has
it. The controller also waits until the other brokers have taken its orders, but for TOLD_MS at most: a client that has
created a topic may ask any of them next. Kafka's controller does not wait for them. Changes of different things go on
at the same time. If one topic of a request fails, the others are made.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from uuid import UUID

from broker.cluster.acl_documents import resource_of
from broker.cluster.acl_writes import write_acls
from broker.cluster.channel import Sent
from broker.cluster.config_entity import TOPIC_TYPE, ConfigEntity
from broker.cluster.controller import Controller
from broker.cluster.documents import DamagedDocument
from broker.cluster.driver import Driver, OperationOwners
from broker.cluster.entity_configs import write_config
from broker.cluster.procedure import Procedure
from broker.cluster.requests import Answer, CreatePartitions, CreateTopic, DeleteTopic, Request
from broker.cluster.topic_creation import create_topic_as_broker
from broker.membership.entity_settings import AlteredEntities, altered_entities, encoded, merged
from broker.metadata.changes import Keys
from broker.metadata.image import Image
from broker.metadata.producer_ids import ProducerIds
from broker.metadata.staged import Staged
from broker.metadata.topic import NO_LEADER, Topic
from broker.now import Now
from broker.security.authorization.acl import AclBinding
from broker.security.password_encoder import PasswordEncoder
from broker.waiting.pending import Pending
from broker.wire.errors import ApiError, ErrorCode
from coordination.errors import FlakelogError
from coordination.port import CoordinationError, Operation, Result

SHOWN_MS = 5_000
"""The longest wait for the controller's orders after the coordinator has a change."""
TOLD_MS = 1_000
"""The longest wait for the other brokers after this broker's image shows a change: one of them may be stalled."""
GIVE_UP_MS = 15_000
"""The longest wait for the coordinator, so that no client waits for ever while it is away."""

Submit: TypeAlias = Callable[[Request, Callable[[Answer, Now], None], Now], None]


@dataclass(eq=False)
class _Work:
    """A change under way."""

    staged: Staged
    keys: frozenset[Hashable] | None
    ends_by_ms: int
    parts: int = 1
    """The parts that have not ended, and 1 while parts are begun."""
    is_carried_out: bool = False
    orders: Sent | None = None
    """Once this broker's image shows the change: the orders of the controller that have told it to others."""
    new_partitions: dict[str, int] = field(default_factory=dict)
    """By topic, the first partition that is new."""
    settings: AlteredEntities = field(default_factory=dict)
    added: frozenset[AclBinding] = frozenset()
    removed: frozenset[AclBinding] = frozenset()
    """The access rules that the change adds and removes."""
    drivers: list[Driver] = field(default_factory=list)


class ClusterExecutor:
    """See the module."""

    new_partitions = 0  # logs are made when the controller orders it
    late_reason = "ZooKeeper, or the directory of --processes, did not take the change within the request's time limit"

    def __init__(
        self,
        image: Image,
        controller: Controller,
        submit: Submit,
        producer_ids: ProducerIds,
        new_uuid: Callable[[], UUID],
        passwords: PasswordEncoder,
        pending: Pending,
    ) -> None:
        self.on_end: Callable[[Now], None] = lambda now: None
        self._image = image
        self._controller = controller
        self._submit = submit
        self._producer_ids = producer_ids
        self._new_uuid = new_uuid
        self._passwords = passwords
        self._pending = pending
        self._works: list[_Work] = []
        self._owners = OperationOwners()

    # --- changes -------------------------------------------------------------------------------------------------

    def may_begin(self, keys: Keys) -> bool:
        """Return True if no change of the same things is under way."""
        if keys is None:
            return not self._works
        return all(work.keys is not None and work.keys.isdisjoint(keys) for work in self._works)

    def stage(self, keys: Keys, staged: Staged, now: Now) -> None:
        """Begin to carry out a change."""
        work = _Work(staged, None if keys is None else frozenset(keys), now.ms + GIVE_UP_MS)
        self._works.append(work)
        change = staged.change
        for name, topic in change.topics.items():
            self._change_topic(work, name, topic, now)
        work.settings = altered_entities(self._image, change)
        for entity, settings in work.settings.items():
            self._write(work, entity, settings, now)
        if change.acls is not None:
            self._write_acls(work, change.acls, now)
        if change.producer_ids:
            self._producer_ids.reserve()
        self._part_ended(work, None, None, now)

    def _change_topic(self, work: _Work, name: str, topic: Topic | None, now: Now) -> None:
        before = self._image.topic(name)
        if topic is None:
            self._ask(work, name, DeleteTopic(name), now)
        elif before is None or before.id != topic.id:
            work.new_partitions[name] = 0
            self._create(work, topic, now)
        else:
            existing = len(before.partitions)
            added = tuple(state.replicas for state in topic.partitions[existing:])
            if added:
                work.new_partitions[name] = existing
                self._ask(work, name, CreatePartitions(name, len(topic.partitions), added), now)

    def _create(self, work: _Work, topic: Topic, now: Now) -> None:
        assignments = {number: state.replicas for number, state in enumerate(topic.partitions)}
        if self._controller.is_active:
            request = CreateTopic(topic.name, topic.id, topic.properties, assignments=assignments)
            self._ask(work, topic.name, request, now)
        else:
            creation = create_topic_as_broker(topic.name, assignments, topic.properties, self._new_uuid)
            self._run(work, topic.name, creation, now)

    def _ask(self, work: _Work, name: str, request: Request, now: Now) -> None:
        def answered(answer: Answer, at: Now) -> None:
            error = ApiError(answer.error_code, answer.message or "") if answer.error_code else None
            self._part_ended(work, name, error, at)

        work.parts += 1
        self._submit(request, answered, now)

    def _write(self, work: _Work, entity: ConfigEntity, values: Mapping[str, str | None], now: Now) -> None:
        """Write the settings of an entity that differ; None removes one."""
        name = entity.names[0] if entity.entity_type == TOPIC_TYPE else None
        texts = encoded(entity, values, self._passwords)
        self._run(work, name, write_config(entity, lambda present: merged(present, texts)), now)

    def _write_acls(self, work: _Work, acls: frozenset[AclBinding], now: Now) -> None:
        work.added, work.removed = acls - self._image.acls, self._image.acls - acls
        for resource in sorted({resource_of(binding) for binding in work.added | work.removed}):
            added, removed = (
                [binding for binding in bindings if resource_of(binding) == resource]
                for bindings in (work.added, work.removed)
            )
            self._run(work, None, write_acls(resource, added, removed), now)

    def _run(self, work: _Work, name: str | None, procedure: Procedure[Any], now: Now) -> None:
        def ended(value: Any, error: Exception | None, at: Now) -> None:
            self._part_ended(work, name, None if error is None else _failure(error), at)

        work.parts += 1
        driver = Driver(self._pending)
        work.drivers.append(driver)
        driver.begin(procedure, ended, now)

    def _part_ended(self, work: _Work, name: str | None, error: ApiError | None, now: Now) -> None:
        staged = work.staged
        if error is not None and name is None:
            staged.error = staged.error or error
        elif error is not None and name is not None:
            staged.errors[name] = error
        work.parts -= 1
        if not work.parts:
            work.is_carried_out = True
            work.ends_by_ms = now.ms + SHOWN_MS
            self._end_if_shown(work, now)

    # --- the end of a change -------------------------------------------------------------------------------------

    def follow(self, now: Now) -> None:
        """End the changes that the image shows now, and that other brokers know."""
        for work in list(self._works):
            self._end_if_shown(work, now)

    def _end_if_shown(self, work: _Work, now: Now) -> None:
        staged, is_late = work.staged, work.ends_by_ms <= now.ms
        if work not in self._works or not (work.is_carried_out or is_late):
            return
        if not work.is_carried_out:
            staged.error = _unanswered("the coordinator does not answer")
        if staged.error is not None or is_late or self._is_shown(work) and self._is_told(work, now):
            self._works.remove(work)
            for driver in work.drivers:
                driver.cancel()
            staged.end()
            self.on_end(now)

    def _is_shown(self, work: _Work) -> bool:
        change, image, errors = work.staged.change, self._image, work.staged.errors
        if change.producer_ids and not self._producer_ids.left:
            return False
        for name, topic in change.topics.items():
            if name not in errors and not _shows(image.topic(name), topic, work.new_partitions.get(name)):
                return False
        if not (work.added <= image.acls and work.removed.isdisjoint(image.acls)):
            return False
        missing = altered_entities(image, change)  # of this change: others may alter the same entities meanwhile
        return not any(missing.get(entity, {}).keys() & values.keys() for entity, values in work.settings.items())

    def _is_told(self, work: _Work, now: Now) -> bool:
        """Return True if the other brokers know of a change of topics that this broker's image shows."""
        if not work.staged.change.topics:
            return True
        if work.orders is None:
            work.orders = self._controller.sent
            work.ends_by_ms = min(work.ends_by_ms, now.ms + TOLD_MS)
        return self._controller.have_answered(work.orders)

    # --- the coordinator -----------------------------------------------------------------------------------------

    def take_operations(self) -> list[Operation]:
        """Return the operations to carry out now. Pass each result to `completed` with the same object."""
        return self._owners.take(driver for work in self._works for driver in work.drivers)

    def completed(self, operation: Operation, outcome: Result | CoordinationError, now: Now) -> None:
        """Take the result or the error of an operation."""
        self._owners.completed(operation, outcome, now)

    # --- time ----------------------------------------------------------------------------------------------------

    def tick(self, now: Now) -> None:
        for work in list(self._works):
            for driver in work.drivers:
                driver.tick(now)
            self._end_if_shown(work, now)

    def next_deadline_ms(self) -> int | None:
        """Return when `tick` is due."""
        deadlines = [driver.next_deadline_ms() for work in self._works for driver in work.drivers]
        deadlines += [work.ends_by_ms for work in self._works]
        return min((deadline for deadline in deadlines if deadline is not None), default=None)


def _failure(error: Exception) -> ApiError:
    """Return the error for clients of a procedure that ended. A fault of the broker's own is raised again."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, CoordinationError):
        return _unanswered(f"the session at the coordinator has ended ({error})")
    if isinstance(error, FlakelogError | DamagedDocument | ValueError):
        return ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))
    raise error


def _unanswered(reason: str) -> ApiError:
    return ApiError(ErrorCode.REQUEST_TIMED_OUT, f"{reason}: the change may have been made, or not")


def _shows(shown: Topic | None, decided: Topic | None, first_new: int | None) -> bool:
    """Return True if the image has what was decided: the topic with all partitions, the new ones with leaders, or none.

    Another topic of the same name, made by another broker at the same time, shows it too.
    """
    if decided is None or shown is None:
        return shown is decided
    if shown.id != decided.id:
        return True
    if len(shown.partitions) < len(decided.partitions):
        return False
    return first_new is None or all(state.leader != NO_LEADER for state in shown.partitions[first_new:])
