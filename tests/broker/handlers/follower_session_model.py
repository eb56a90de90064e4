"""Two leaders with one random history: followers of the first fetch in sessions, those of the second name everything.

The second leader follows Kafka's rule: each fetch notes and reads all partitions. After each step both must have
answered the same, and must know the same of each follower. The first may tell a high watermark that is no reason for an
answer up to OFFSETS_WAIT_MS later, but not after a wait in vain.
"""

from collections import Counter
from random import Random

from broker.services.follower_session import OFFSETS_WAIT_MS
from broker.wire.errors import ErrorCode
from broker.wire.fetch import FINAL_EPOCH, INITIAL_EPOCH, NO_SESSION_ID
from tests.broker.engine_client import DELETE_RECORDS, FETCH
from tests.broker.replicated import ReplicatedLeader

TOPIC, PARTITIONS, FOLLOWERS = "flights", 5, (2, 3)
LAG_MS = 10_000
FOREVER_MS = 1_000_000_000


class FollowerOfBoth:
    """A follower that sends the same fetches to both leaders: in a session to the first, in full to the second."""

    def __init__(self, model, broker_id):
        self.model = model
        self.id = broker_id
        self.clients = [leader.follower(broker_id) for leader in model.leaders]
        self.life = self.clients[0].life
        self.template = self.clients[0].request(TOPIC, 0)
        self.waits, self.asked_life = False, self.life
        self.asked_ms = self.wait_ms = 0
        self.untold_ms = {}
        """Since when the session leaves a high watermark untold, by partition."""
        self.begin()

    def begin(self):
        """Begin a new session, for all partitions."""
        (partition,) = self.template.partitions
        self.partitions = {index: partition._replace(partition=index) for index in range(PARTITIONS)}
        self.session = NO_SESSION_ID, INITIAL_EPOCH
        self.session_partitions, self.told_offsets, self.untold_ms = {}, {}, {}

    def fetch(self, wait_ms):
        """Send both requests. The request of a session names what it does not know yet."""
        if not self.partitions:
            self.begin()
        before = self.session_partitions
        named = [partition for index, partition in self.partitions.items() if before.get(index) != partition]
        dropped = tuple((partition.topic, index) for index, partition in before.items() if index not in self.partitions)
        forgotten = [index for _, index in dropped]
        forgotten += [a.partition for a in named if a.current_leader_epoch != self._known_epoch(a.partition)]
        for index in forgotten:
            self.told_offsets.pop(index, None)
            self.untold_ms.pop(index, None)
        self.asked_ms, self.wait_ms = self.now_ms, wait_ms
        common = self.template._replace(max_wait_ms=wait_ms, replica_epoch=self.life)
        id, epoch = self.session
        in_session = common._replace(partitions=named, forgotten=dropped, session_id=id, session_epoch=epoch)
        in_full = common._replace(partitions=list(self.partitions.values()), session_epoch=FINAL_EPOCH)
        self.session_partitions = dict(self.partitions)
        self.waits, self.asked_life = True, self.life
        for follower, request in zip(self.clients, (in_session, in_full)):
            follower.client.send(FETCH, 17, request)

    @property
    def now_ms(self):
        return self.model.leaders[0].broker.now.ms

    def _known_epoch(self, index):
        partition = self.session_partitions.get(index)
        return None if partition is None else partition.current_leader_epoch

    def take_answers(self):
        """Compare the answers that have come. A session answers the rows of a full answer that are new."""
        own, other = (follower.client.replies() for follower in self.clients)
        assert len(own) == len(other), f"follower {self.id} was answered by one leader alone"
        if not own:
            return
        ((_, own),), ((_, other),) = own, other
        assert not own.error_code and not other.error_code
        id, epoch = self.session
        own_indexes = {row.partition for row in own.partitions}
        for index in own_indexes:
            self.untold_ms.pop(index, None)
        in_vain = not any(row.error_code or row.diverging or row.size for row in other.partitions)
        due = [row for row in other.partitions if row.partition in own_indexes or not self._may_miss(row, in_vain)]
        news = [row for row in due if self._is_news(row) or epoch == INITIAL_EPOCH]
        own_rows, rows = ({row.partition: row_values(row) for row in answer} for answer in (own.partitions, news))
        assert own_rows == rows, f"follower {self.id} was told {own_rows} instead of {rows}"
        self.session = own.session_id, epoch + 1
        self.waits = False
        for row in own.partitions:
            self.model.counts["news"] += 1
            self._go_on(row)

    def _may_miss(self, row, in_vain):
        """Return True for an error that a session need not tell: that the life is over in which the follower asked.

        Such a fetch counts for nothing (rule E3). It is told so once the partition has something else to tell. Return
        True also for a high watermark that is not due yet.
        """
        if row.error_code == ErrorCode.STALE_BROKER_EPOCH:
            return self.asked_life < self.life
        high_watermark, log_start_offset = self.told_offsets.get(row.partition, (-1, -1))
        if row.error_code or row.diverging is not None or row.size or log_start_offset != row.log_start_offset:
            return False
        if high_watermark in (-1, row.high_watermark):
            return False
        since_ms = self.untold_ms.setdefault(row.partition, self.now_ms)
        may_miss = not in_vain and self.wait_ms > 0 and self.asked_ms < since_ms + OFFSETS_WAIT_MS
        self.model.counts["untold"] += may_miss
        return may_miss

    def _is_news(self, row):
        unchanged = self.told_offsets.get(row.partition) == (row.high_watermark, row.log_start_offset)
        failed = row.error_code or row.diverging is not None
        self.told_offsets[row.partition] = (-1 if failed else row.high_watermark), row.log_start_offset
        return bool(failed or not unchanged or row.size)

    def _go_on(self, row):
        """Ask for what follows an answer, mostly."""
        partition, random = self.partitions.get(row.partition), self.model.random
        if partition is None or random.random() < 0.15:
            return
        log = self.model.leaders[0].log(TOPIC, row.partition)
        if row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            partition = partition._replace(fetch_offset=row.log_start_offset, last_fetched_epoch=-1)
        elif row.error_code:
            partition = partition._replace(current_leader_epoch=random.choice([-1, log.leader_epoch]))
        elif row.diverging is not None:
            partition = partition._replace(fetch_offset=max(row.diverging[1], 0), last_fetched_epoch=-1)
        elif row.size:
            epoch = log.epochs[-1][0] if log.epochs else -1
            last_epoch = random.choice([-1, epoch])
            partition = partition._replace(fetch_offset=log.log_end_offset, last_fetched_epoch=last_epoch)
        if row.log_start_offset >= 0 and not row.error_code:
            partition = partition._replace(log_start_offset=min(row.log_start_offset, partition.fetch_offset))
        self.partitions[row.partition] = partition


def row_values(row):
    """Return what an answer tells of a partition."""
    return (
        row.error_code, row.high_watermark, row.last_stable_offset, row.log_start_offset, row.diverging, row.size,
        row.last_id,
    )  # fmt: skip


class FollowerSessionModel:
    """See the module. `counts` tells how often each thing has happened."""

    def __init__(self, seed):
        self.random = Random(seed)
        self.counts = Counter()
        settings = {"replica_lag_time_max_ms": LAG_MS, "log_retention_check_interval_ms": 5_000}
        self.leaders = [ReplicatedLeader(**settings) for _ in range(2)]
        isr = self.random.choice([(1, 2, 3), (1, 2), (1,)])
        flushes = self.random.random() < 0.2
        for leader in self.leaders:
            leader.services.metadata.controller_id = -1  # the model grants proposals itself
            leader.holds = lambda call: True
            leader.copied(TOPIC, PARTITIONS, isr=isr, flakelog_visible_after_flush=str(flushes).lower())
        self.topics = 0
        self.producers = [leader.client() for leader in self.leaders]
        self.followers = [FollowerOfBoth(self, broker_id) for broker_id in FOLLOWERS]

    def run(self, steps):
        acts = {
            self.append: 8, self.fetch: 12, self.later: 6, self.delete_records: 1, self.next_epoch: 1, self.grant: 3,
            self.forget: 1, self.ask_otherwise: 1, self.begin_anew: 0.5, self.other_state: 1, self.new_life: 0.3,
            self.other_topic: 0.3, self.move: 0.7, self.retention: 0.3, self.take_offline: 0.05, self.fetch_alone: 0.5,
        }  # fmt: skip
        for _ in range(steps):
            (act,) = self.random.choices(list(acts), acts.values())
            self.counts[act.__name__] += 1
            act()
            self.check()
        return self

    def check(self):
        for leader in self.leaders:
            leader.broker.pump()
        for follower in self.followers:
            follower.take_answers()
        for index in range(PARTITIONS):
            own, other = (self._state_of(leader, index) for leader in self.leaders)
            assert own == other, f"{TOPIC}-{index}: {own} instead of {other}"

    def _state_of(self, leader, index):
        """Return all that a leader knows of a partition."""
        log, partition = leader.log(TOPIC, index), leader.partition(TOPIC, index)
        offsets = log.log_start_offset, log.log_end_offset, log.high_watermark, log.offline
        if partition is None:
            return offsets
        followers = [
            (id, follower.caught_up_ms, follower.end_offset, follower.log_start_offset, follower.broker_epoch)
            for id, follower in partition.followers.items()
        ]
        return (*offsets, partition.state, partition.next_deadline_ms(), followers)

    # --- acts ----------------------------------------------------------------------------------------------------

    def _partition(self):
        return self.random.randrange(PARTITIONS)

    def _idle(self):
        """Return the followers that have no request under way."""
        return [follower for follower in self.followers if not follower.waits]

    def append(self):
        index, size = self._partition(), self.random.choice([1, 50])
        for producer in self.producers:
            producer.produce(TOPIC, bytes(size), partition=index)

    def fetch(self):
        for follower in self._idle()[: self.random.choice([1, 2])]:
            follower.fetch(self.random.choice([0, 500]))

    def fetch_alone(self):
        """Fetch a partition outside of the session, as a follower does that has lost it."""
        follower, index = self.random.choice(self.followers), self._partition()
        partition = follower.template.partitions[0]._replace(partition=index, fetch_offset=self.random.randrange(3))
        request = follower.template._replace(partitions=[partition], replica_epoch=follower.life)
        for leader in self.leaders:
            leader.follower(follower.id).client.ask(FETCH, 17, request)

    def later(self):
        ms = self.random.choice([10, 300, 500, 2_000, LAG_MS + 1])
        for leader in self.leaders:
            leader.later(ms)
            leader.services.replication.led.tick(leader.broker.now)

    def delete_records(self):
        index, offset = self._partition(), self.random.choice([-1, 1, 2])
        partitions = [{"partition_index": index, "offset": offset}]
        request = {"topics": [{"name": TOPIC, "partitions": partitions}], "timeout": 0}
        for leader in self.leaders:
            leader.client().send(DELETE_RECORDS, 2, request)

    def next_epoch(self):
        index, isr = self._partition(), self.random.choice([(1, 2, 3), (1, 2), (1, 3), (1,)])
        for leader in self.leaders:
            leader.next_epoch(TOPIC, index, isr=isr, leader=1)

    def move(self):
        """Let another broker lead a partition, and soon broker 1 again."""
        index = self._partition()
        for leader in self.leaders:
            leader.next_epoch(TOPIC, index, leader=2)
        if self.random.random() < 0.5:
            self.check()
            self.fetch()
            self.check()
            self.next_epoch()

    def other_state(self):
        """Let the controller decide another ISR in the present epoch."""
        index = self._partition()
        partition = self.leaders[0].partition(TOPIC, index)
        if partition is not None:
            isr, epoch = self.random.choice([(1, 2, 3), (1, 2), (1, 3)]), partition.state.partition_epoch + 1
            for leader in self.leaders:
                leader.state(TOPIC, index, isr=isr, partition_epoch=epoch)

    def grant(self):
        """Let the controller answer a proposal, if there is one."""
        index, kind = self._partition(), self.random.choice(["granted", "granted", "refused", "ineligible"])
        proposals = []
        for leader in self.leaders:
            partition, now = leader.partition(TOPIC, index), leader.broker.now
            proposal = partition and partition.take_proposal(1, now._replace(ms=FOREVER_MS))
            proposals.append(proposal)
            if not proposal:
                continue
            self.counts[kind] += 1
            if kind == "granted":
                partition.granted(proposal.leader_epoch, proposal.partition_epoch + 1, tuple(proposal.isr), (), now)
            else:
                getattr(partition, kind)(proposal.leader_epoch, now)
            leader.services.touch(partition.log, now)
        assert proposals[0] == proposals[1]

    def forget(self):
        for follower in self._idle():
            follower.partitions.pop(self._partition(), None)
            if self.random.random() < 0.5:
                follower.fetch(0)
                self.check()
            missing = set(range(PARTITIONS)) - set(follower.partitions)
            if missing and self.random.random() < 0.7:
                partition = follower.template.partitions[0]
                index = min(missing)
                offset = self.leaders[0].log(TOPIC, index).log_end_offset
                follower.partitions[index] = partition._replace(partition=index, fetch_offset=offset)

    def ask_otherwise(self):
        """Ask for a partition from another offset, as a follower does whose log was truncated."""
        for follower in self._idle():
            partition = follower.partitions.get(self._partition())
            if partition is not None:
                offset = max(partition.fetch_offset + self.random.choice([-1, 1]), 0)
                epoch = self.random.choice([-1, 0, partition.current_leader_epoch])
                changed = partition._replace(fetch_offset=offset, last_fetched_epoch=epoch)
                follower.partitions[partition.partition] = changed

    def begin_anew(self):
        for follower in self._idle()[:1]:
            follower.begin()

    def new_life(self):
        self.random.choice(self.followers).life += 1

    def other_topic(self):
        """Change the metadata, but none of the partitions."""
        self.topics += 1
        for leader in self.leaders:
            leader.copied(f"other-{self.topics}")

    def retention(self):
        """Let the oldest records go, as retention does."""
        for leader in self.leaders:
            topic = leader._topics[TOPIC]
            leader._decide(topic.with_properties({**topic.properties, "retention.bytes": "1"}))
            leader.later(6_000)

    def take_offline(self):
        index = self._partition()
        for leader in self.leaders:
            leader.log(TOPIC, index).take_offline("the disk failed")
            leader.later(10)
