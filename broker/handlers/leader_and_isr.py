"""LeaderAndIsr, v7 to v7.

Behaviour: the controller names the leaders of partitions that this broker has a copy of. Served on the listener of
brokers only. An order of an earlier controller, or for an earlier life of this broker, is refused as a whole. A
partition is refused with STALE_CONTROLLER_EPOCH unless its leader epoch rises, as by Kafka 3.9. New partitions get
their logs, with the settings of their topic, which are read first. The answer waits until the file of this broker names
new partitions, so that none is a stray at the next start. A partition with several copies is led once its leader epoch
is on the disk (rule S2); a log that is being truncated is waited for. KAFKA_STORAGE_ERROR names a log that is offline,
and a new partition without room on the disk; the answer says whether the records are kept. No order is answered before
the directory names this broker's life (rule W1), nor while it has the high watermark of a deleted partition of the same
name.
"""

from collections.abc import Collection
from typing import Any, TypeAlias

from broker.log.epochs_begun import WriteEpochsBegun
from broker.log.new_logs import NewLog
from broker.log.partition_log import PartitionLog
from broker.membership.hosted_partitions import HostedPlan, plan_leader_and_isr
from broker.membership.member import SETTINGS_READ, Member
from broker.membership.replica_manager import LOGS_READY
from broker.metadata.change import Change
from broker.metadata.changes import CHANGED, Planned
from broker.metadata.staged import Staged
from broker.metadata.topic import topic_keys
from broker.now import Now
from broker.services.context import RequestContext
from broker.services.image_consequences import host
from broker.services.membership import member_of
from broker.services.topic_changes import check_directory
from broker.waiting.purgatory import Delayed
from broker.wire.errors import ApiError, ErrorCode

Answer: TypeAlias = dict[str, Any]


def handle(call: RequestContext, now: Now) -> Answer | Delayed[Answer]:
    member = member_of(call.services)
    refusal = member.refusal_of_order(call.request, now)
    if refusal:
        return {"error_code": refusal, "topics": ()}
    order = _Order(call, member)
    answer = order.try_complete(now)
    if answer is not None:
        return answer
    # The coordinator answers, or the session ends and with it this life of the broker: the wait needs no limit. It
    # holds its connection, so that it waits however many clients wait: a refused order is repeated after seconds only.
    keys = SETTINGS_READ, LOGS_READY, CHANGED
    return Delayed(keys, None, order.try_complete, order.expire, holds_connection=True)


class _Order:
    """An order that waits for the settings of new topics, for the writes of this broker's life and of the leader
    epochs, and then for the file."""

    def __init__(self, call: RequestContext, member: Member) -> None:
        self._call = call
        self._member = member
        self._epochs: WriteEpochsBegun | None = None
        self._to_lead: dict[tuple[str, int], tuple[PartitionLog, int]] = {}
        """The logs that begin a leader epoch, and the epoch."""
        self._hosting: Answer | Delayed[Answer] | None = None

    def try_complete(self, now: Now) -> Answer | None:
        if self._hosting is None:
            if not (self._has_settings(now) and self._has_life() and self._has_forgotten() and self._has_epochs()):
                return None
            keys = topic_keys(str(topic.topic_name) for topic in self._call.request.topic_states)
            self._hosting = self._call.services.hosting.submit(keys, self._begin, now)
        return self._hosting.try_complete(now) if isinstance(self._hosting, Delayed) else self._hosting

    def expire(self, now: Now) -> Answer:
        """Refuse the order. Nothing calls this: the wait has no deadline, and no limit."""
        return _answer(self._call, HostedPlan(), ErrorCode.KAFKA_STORAGE_ERROR)

    def _has_settings(self, now: Now) -> bool:
        hosted = self._call.services.hosted
        topics = self._call.request.topic_states
        new = [topic for topic in topics if hosted.topic(str(topic.topic_name)) is None]
        return self._member.want_settings([(str(topic.topic_name), topic.topic_id) for topic in new], now)

    def _has_life(self) -> bool:
        """Return True once the directory names the life of this broker that the order is for (rule W1)."""
        replication = self._call.services.replication
        return replication is None or replication.life.has_taken(self._call.request.broker_epoch)

    def _has_forgotten(self) -> bool:
        """Return True once no deleted partition of the same name has left a high watermark on the disk."""
        replication = self._call.services.replication
        return replication is None or replication.has_forgotten(
            (str(topic.topic_name), state.partition_index)
            for topic in self._call.request.topic_states
            for state in topic.partition_states
        )

    def _has_epochs(self) -> bool:
        """Return True once the leader epochs of partitions with several copies are on the disk, or cannot be.

        A leader that stays in place goes on in its old epoch meanwhile. A follower may be truncated meanwhile, by its
        last leader. Its new log has forgotten the epoch, so that is written once more.
        """
        replication = self._call.services.replication
        if replication is None:
            return True
        if self._epochs is None:
            to_lead = [
                (str(topic.topic_name), state.partition_index, state.leader_epoch)
                for topic in self._call.request.topic_states
                for state in topic.partition_states
                if state.leader == self._call.services.node.id and len(state.replicas) > 1
            ]
            if any(replication.is_truncating(topic, partition) for topic, partition, _ in to_lead):
                return False
            logs = self._call.services.logs
            for topic, partition, epoch in to_lead:
                log = logs.find(topic, partition)
                if log is not None and epoch > log.leader_epoch:
                    self._to_lead[topic, partition] = log, epoch
            if not self._to_lead:
                return True
            self._epochs = logs.begin_epochs(dict(self._to_lead.values()))
        if not self._epochs.is_done and self._epochs.error is None:
            return False
        if not self._opened_anew():
            return True
        self._epochs, self._to_lead = None, {}
        return self._has_epochs()

    def _opened_anew(self) -> list[tuple[str, int]]:
        """Return the partitions to lead whose logs are gone, or opened anew, since their epochs were written."""
        find = self._call.services.logs.find
        return [key for key, (log, _) in self._to_lead.items() if find(*key) is not log]

    def _begin(self, now: Now) -> Answer | Planned:
        services = self._call.services
        refusal = self._member.refusal_of_order(self._call.request, now)  # another life may have begun meanwhile
        if refusal:
            return {"error_code": refusal, "topics": ()}
        plan = self._plan()
        for problem in plan.problems:
            services.report(problem)
        if services.replication is not None:
            services.replication.will_lead(key for key in self._to_lead if key not in plan.refused)
        logs = {}
        for name, partition in plan.new:
            topic = plan.topics[name]
            assert topic is not None
            has_copies = services.replicates and len(topic.partitions[partition].replicas) > 1
            logs[name, partition] = NewLog(services.config_of(topic), topic.id, has_copies)
        if not logs and not plan.stores:
            host(services, plan.topics, now)
            return _answer(self._call, plan)

        def answer(error: ApiError | None, at: Now) -> Answer:
            return _answer(self._call, plan) if error is None else self._not_stored(plan.new, error, at)

        return Planned(Staged(Change(plan.topics), logs), answer)

    def _plan(self, new: Collection[tuple[str, int]] = ()) -> HostedPlan:
        """Plan the order, without these new partitions."""
        services = self._call.services
        has_failed = self._epochs is not None and self._epochs.error is not None
        return plan_leader_and_isr(
            services.hosted,
            services.node.id,
            self._call.request.topic_states,
            self._member.settings_of,
            lambda directory: check_directory(services, directory),
            {*(self._to_lead if has_failed else self._opened_anew()), *new},
            services.logs.is_offline,
            services.logs.waits_for_space,
            replicates=services.replicates,
        )

    def _not_stored(self, new: Collection[tuple[str, int]], error: ApiError, now: Now) -> Answer:
        """Refuse new partitions, because the file could not be written. The others need no file: a full disk shall not
        keep their records from readers. Settings may have been altered since the plan was made.

        A broker without a log cannot tell whether it has lost one.
        """
        services = self._call.services
        services.report(f"hosted partitions could not be stored: {error}")
        plan = self._plan(new)
        plan.kept.difference_update(new)
        host(services, self._member.with_settings(topic for topic in plan.topics.values() if topic is not None), now)
        return _answer(self._call, plan)


def _answer(call: RequestContext, plan: HostedPlan, error: ErrorCode = ErrorCode.NONE) -> Answer:
    return {
        "error_code": ErrorCode.NONE,
        "topics": [
            {
                "topic_id": topic.topic_id,
                "partition_errors": [
                    {
                        "partition_index": state.partition_index,
                        "error_code": plan.refused.get((str(topic.topic_name), state.partition_index), error),
                        "keeps_records": (str(topic.topic_name), state.partition_index) in plan.kept,
                    }
                    for state in topic.partition_states
                ],
            }
            for topic in call.request.topic_states
        ],
    }
