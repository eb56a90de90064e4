"""Elections of leaders that an administrator asks for (ElectLeaders, KIP-183 and KIP-460)."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias

from broker.client.api_versions import ELECT_LEADERS
from broker.client.blocking import Client
from broker.client.controller_request import ask_controller
from broker.client.core import ClientCore, Partition, Steps, batched
from broker.client.errors import BrokerError
from broker.wire.errors import ErrorCode
from flakelog.operations.partitions import Replicas, replicas

ElectionKind: TypeAlias = Literal["preferred", "unclean"]
KINDS: dict[ElectionKind, int] = {"preferred": 0, "unclean": 1}
PARTITIONS_AT_ONCE = 1_000
TIMEOUT_MS = 30_000


def partitions_to_elect(client: Client, kind: ElectionKind, topics: Sequence[str] = ()) -> list[Partition]:
    """Return the partitions of these topics, or of all, that need an election.

    A preferred one is for partitions that another broker leads than the first of their replicas, an unclean one for
    partitions without a leader.
    """
    return [partition for partition, nodes in replicas(client, topics).items() if _needs(kind, nodes)]


def _needs(kind: ElectionKind, nodes: Replicas) -> bool:
    return nodes.leader < 0 if kind == "unclean" else nodes.leader not in nodes.replicas[:1]


def elect_leaders(
    client: Client, kind: ElectionKind, partitions: Iterable[Partition]
) -> dict[Partition, BrokerError | None]:
    """Have the controller elect a leader for each partition. Return for each None, or why it was not elected.

    ELECTION_NOT_NEEDED is a reason too. An unclean election lets a live replica lead that is not in sync, and loses the
    acknowledged records that it lacks. Raise BrokerError if the controller refuses the whole request, ValueError for
    another kind.
    """
    if kind not in KINDS:
        raise ValueError(f"{kind!r} is no kind of election; it is 'preferred' or 'unclean'")
    outcomes: dict[Partition, BrokerError | None] = {}
    for some in batched(list(dict.fromkeys(partitions)), PARTITIONS_AT_ONCE):
        outcomes |= client.at_controller(partial(_elect, client.core, kind, some))
    return outcomes


def _elect(
    core: ClientCore, kind: ElectionKind, partitions: Sequence[Partition]
) -> Steps[dict[Partition, BrokerError | None]]:
    numbers: dict[str, list[int]] = {}
    for topic, number in partitions:
        numbers.setdefault(topic, []).append(number)
    named = [{"topic": topic, "partitions": some} for topic, some in numbers.items()]
    fields = {"election_type": KINDS[kind], "topic_partitions": named, "timeout": TIMEOUT_MS}
    answer = yield from ask_controller(core, ELECT_LEADERS, fields, _codes)
    refused = answer.error_code
    if not refused and ErrorCode.NOT_CONTROLLER in _codes(answer):
        refused = ErrorCode.NOT_CONTROLLER  # a broker that is not the controller says so for each partition
    if refused:
        raise BrokerError(int(refused), "the election of leaders")
    return {
        (str(topic.topic), int(row.partition_id)): _error(str(topic.topic), row)
        for topic in answer.replica_election_results
        for row in topic.partition_result
    }


def _codes(answer: Any) -> list[int]:
    rows = (row for topic in answer.replica_election_results for row in topic.partition_result)
    return [answer.error_code, *(row.error_code for row in rows)]


def _error(topic: str, row: Any) -> BrokerError | None:
    if not row.error_code:
        return None
    return BrokerError(int(row.error_code), f"{topic}-{row.partition_id}", row.error_message)
