"""A model of one partition on three brokers: the cores of its leader and its followers over real logs, and a network.

The network delays and loses fetches, answers, orders and proposals. Brokers are killed and start again, sessions end,
and min.insync.replicas changes at each broker and at the controller at different times. A seed is one history.

After each step the model checks:

- a leader's high watermark never goes back, and moves only with an ISR that is large enough, and an empty ELR
- committed records (below the high watermark of a leader) are the same for all leaders, past and present
- an elected leader has all committed records, and no truncation takes one

`heal` then lets all go well. In the end all replicas are in sync, and their logs are equal, byte for byte.
"""

import random
from dataclasses import replace

from broker.log import leader_epochs
from broker.log.copied_appender import append_copied
from broker.log.log_manager import LogManager
from broker.log.storage.memory_storage import MemoryStorage
from broker.now import Now
from broker.record.records import LONG_MAX
from broker.replication import offset_checkpoint
from broker.replication.fetcher import FetchLimits, ReplicaFetcher, Truncate
from broker.replication.partition import Partition
from broker.settings.config import BrokerConfig, TopicConfig
from broker.waiting.pending import Pending
from broker.wire.errors import ApiError, ErrorCode
from broker.wire.fetch import FetchedPartition, FetchResponse
from tests.broker.log.conftest import START_MS, append, new_worker, uuid_of
from tests.broker.log.copying import answer_of, bytes_of, ids_of
from tests.broker.replication.replica_controller import REPLICAS, ReplicaController

TOPIC, TOPIC_ID = "flights", uuid_of(4)
LAG_MS = 1_500
ROUNDS_MAX = 400
"""So many rounds without trouble make all replicas equal."""


class Broker:
    """A broker with its disk. While it runs, it has a log, and leads or follows."""

    def __init__(self, number, min_isr):
        self.number = number
        self.config = TopicConfig(min_insync_replicas=min_isr)
        self.storage = MemoryStorage()
        self.stored = b"0\n0\n"
        """The file of high watermarks."""
        self.life = 0
        self.is_up = False
        self.state = None
        """The state of the last order."""
        self.leads = None
        self.fetcher = None
        self.watermark = 0
        """The high watermark that the last check found, if this broker leads."""

    @property
    def log(self):
        return self.manager.get(TOPIC, 0)

    def start(self, life, now):
        self.life, self.is_up, self.state, self.leads, self.fetcher = life, True, None, None, None
        self.worker = new_worker(now.wall_ms, life)
        self.manager = LogManager(self.storage, BrokerConfig(), lambda line: None)
        self.manager.load_checkpoint()
        self.manager.open(TOPIC, 0, self.config, TOPIC_ID)
        self.manager.opened()
        offset_checkpoint.restore(self.log, offset_checkpoint.decode(self.stored))

    def run_jobs(self):
        while jobs := self.manager.take_syncs():
            for job in jobs:
                job.run()
                self.manager.synced(job)

    def history(self, end=None):
        """Return the leader epoch of each record: it and the offset name a record."""
        log = self.log
        return [leader_epochs.epoch_of(log.epochs, offset) for offset in range(log.log_end_offset)][:end]


class ReplicaModel:
    """The world of one seed."""

    def __init__(self, seed, partition=Partition, restore=True):
        """`partition` is the leader's view; without `restore`, a truncated log has no high watermark (planted)."""
        self.random = random.Random(seed)
        self.partition_class, self.restores = partition, restore
        self.ms = 0
        self.lives = 0
        self.min_isr = self.random.choice((1, 2))
        self.controller = ReplicaController(self.min_isr)
        self.brokers = {number: Broker(number, self.min_isr) for number in REPLICAS}
        self.fetches, self.answers, self.proposals = [], [], []
        self.committed = []
        """The leader epochs of all committed records."""
        self.counts = dict.fromkeys(("appended", "truncated", "led", "granted", "elr"), 0)
        for broker in self.brokers.values():
            self.start(broker)
        self.settle()

    @property
    def now(self):
        return Now(self.ms, START_MS + self.ms)

    def run(self, steps):
        fetches = (self.fetch, self.answer, self.take_answer)
        acts = (self.produce, *fetches, *fetches, self.obey, self.obey, self.look, self.propose, self.alter)
        lives, settings = (self.kill, self.start_one, self.start_one, self.expire), (self.change_min_isr,) * 4
        rare = (*lives, *settings, self.repeat_order, self.repeat_order, self.store, self.pass_time)
        for _ in range(steps):
            self.ms += self.random.choice((1, 1, 10, 100))
            act = self.random.choice(rare if not self.random.randrange(20) else acts)
            act(self.random.choice(list(self.brokers.values())))
            self.check()
        return self

    def settle(self):
        for _ in range(3 * len(REPLICAS)):
            for broker in self.brokers.values():
                self.look(broker)
                self.obey(broker)

    # --- the leader ----------------------------------------------------------------------------------------------

    def produce(self, broker):
        """Append records, as with acks=all: only while the ISR has enough members (R2)."""
        if not broker.is_up or broker.leads is None:
            return
        if broker.leads.has_min_isr or not self.random.randrange(4):  # or with acks=1
            values = [b"%d" % self.ms] * self.random.randrange(1, 4)
            append(broker.log, *values, worker=broker.worker, now=self.now)
            broker.manager.appended(broker.log)
            broker.run_jobs()
            self.counts["appended"] += 1

    def propose(self, broker):
        if not broker.is_up or broker.leads is None:
            return
        broker.leads.check_lag(LAG_MS, self.now)
        proposal = broker.leads.take_proposal(broker.life, self.now)
        if proposal is not None:
            self.proposals.append((broker, broker.life, broker.leads, proposal))

    def alter(self, broker, *, is_lossy=True):
        """Let the controller answer a proposal. The request or the answer may get lost."""
        if not self.proposals:
            return
        sender, life, leads, proposal = self.proposals.pop(self.random.randrange(len(self.proposals)))
        if self._loses(is_lossy):
            answer = None
        else:
            answer = self.controller.alter(sender.number, life, proposal)
            if self._loses(is_lossy):
                answer = None
        if sender.leads is not leads or sender.life != life:
            return
        if answer is None or isinstance(answer, ErrorCode):
            is_ineligible = answer == ErrorCode.INELIGIBLE_REPLICA
            (leads.ineligible if is_ineligible else leads.refused)(proposal.leader_epoch, self.now)
        else:
            self.counts["granted"] += 1
            self.counts["elr"] += bool(answer.elr)
            leads.granted(answer.leader_epoch, answer.partition_epoch, answer.isr, answer.elr, self.now)

    def _loses(self, is_lossy):
        return is_lossy and not self.random.randrange(6)

    # --- fetches -------------------------------------------------------------------------------------------------

    def fetch(self, broker):
        if not broker.is_up or broker.fetcher is None:
            return
        request = broker.fetcher.request(broker.life, self.now)
        if request is not None:
            self.fetches.append((broker, broker.fetcher, self.brokers[broker.state.leader], request))

    def answer(self, broker, *, is_lossy=True):
        """Let a leader answer a fetch."""
        if not self.fetches:
            return
        follower, fetcher, leader, request = self.fetches.pop(self.random.randrange(len(self.fetches)))
        response = None
        if leader.is_up and not self._loses(is_lossy):
            response = FetchResponse([self._answered(leader, request, asked) for asked in request.partitions])
        if self._loses(is_lossy):
            response = None
        self.answers.append((follower, fetcher, response))

    def _answered(self, leader, request, asked):
        log, offset = leader.log, asked.fetch_offset
        result = FetchedPartition(asked.topic, asked.partition, 0, log_start_offset=log.log_start_offset)
        try:
            if leader.leads is None:
                raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "another broker leads")
            log.check_leader_epoch(asked.current_leader_epoch)
            if asked.last_fetched_epoch >= 0:
                ends = log.log_start_offset, log.log_end_offset
                result.diverging = leader_epochs.divergence(log.epochs, asked.last_fetched_epoch, offset, *ends)
            if result.diverging == (-1, -1) or result.diverging is None and offset > log.log_end_offset:
                raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, "the logs cannot be compared there")
            if result.diverging is None:
                life = request.replica_epoch
                leader.leads.fetched(request.replica_id, offset, asked.log_start_offset, life, self.now)
                result.records, result.ids = answer_of(log, offset, self.random.choice((150, 400, 10_000)))
            result.high_watermark = log.high_watermark
        except ApiError as error:
            result.error_code = error.code
        return result

    def take_answer(self, broker):
        if not self.answers:
            return
        follower, fetcher, response = self.answers.pop(self.random.randrange(len(self.answers)))
        if not follower.is_up or follower.fetcher is not fetcher:
            return
        for decision in fetcher.answered(response, self.now):
            if isinstance(decision, Truncate):
                self._truncate(follower, decision)
                continue
            log = decision.log
            append_copied(log, decision.records, decision.ids, self.now)
            log.move_replicated_to(min(decision.high_watermark, log.log_end_offset))
            follower.manager.appended(log)
            follower.run_jobs()
            fetcher.go_on(log, self.now)

    def _truncate(self, follower, cut):
        self.counts["truncated"] += 1
        history = follower.history()
        if history[: len(self.committed)] == self.committed[: len(history)]:
            taken = self.committed[: len(history)][cut.offset :]
            assert not taken, f"{follower.number} truncates {len(taken)} committed records at {cut.offset}"
        watermark = cut.log.high_watermark
        follower.manager.truncate({(TOPIC, 0): cut.offset}, anew=cut.is_anew)
        follower.run_jobs()
        (outcome,) = follower.manager.take_truncated()
        if self.restores:
            outcome.log.move_replicated_to(min(watermark, outcome.log.log_end_offset))
        outcome.log.follow(follower.state.leader_epoch)
        follower.fetcher.follow(outcome.log, TOPIC_ID, follower.state.leader_epoch, self.now)

    # --- orders --------------------------------------------------------------------------------------------------

    def look(self, broker):
        if self.controller.events:
            self.controller.look()

    def repeat_order(self, broker):
        self.controller.order(broker.number)

    def obey(self, broker):
        """Deliver the next LeaderAndIsr to a broker. Drop the orders to its earlier lives."""
        orders = self.controller.orders[broker.number]
        while orders and orders[0][0] < broker.life:
            orders.pop(0)
        if not orders or not broker.is_up:
            return
        _, state = orders.pop(0)
        before = broker.state
        if state.leader == broker.number == (before.leader if before is not None else None):
            if state.leader_epoch > before.leader_epoch:
                broker.log.start_leader_epoch(state.leader_epoch)
            broker.leads.lead(state, self.now)
        elif before is not None and state.leader_epoch <= before.leader_epoch:
            return
        elif state.leader == broker.number:
            self._lead(broker, state)
        else:
            self._follow(broker, state)
        broker.state = state

    def _lead(self, broker, state):
        self.counts["led"] += 1
        assert broker.history()[: len(self.committed)] == self.committed, f"{broker.number} lacks committed records"
        broker.fetcher, broker.watermark = None, broker.log.high_watermark
        broker.log.start_leader_epoch(state.leader_epoch)
        broker.leads = self.partition_class(broker.log, broker.number)
        broker.leads.lead(state, self.now)

    def _follow(self, broker, state):
        log = broker.log
        broker.leads = broker.fetcher = None
        if log.replicated_to == LONG_MAX:
            log.move_replicated_to(log.high_watermark)
        if state.leader in REPLICAS:
            log.follow(state.leader_epoch)
            broker.fetcher = ReplicaFetcher(broker.number, FetchLimits(backoff_ms=100), Pending())
            broker.fetcher.follow(log, TOPIC_ID, state.leader_epoch, self.now)

    # --- trouble -------------------------------------------------------------------------------------------------

    def kill(self, broker):
        """Kill a broker; the last one seldom."""
        if broker.is_up and (len(self._down()) < 2 or not self.random.randrange(4)):
            self._end_session(broker)
            broker.is_up = False

    def expire(self, broker):
        """End the session of a running broker. The broker registers again, and acts on its last order until then."""
        if broker.is_up:
            self._end_session(broker)
            self._register(broker)

    def start_one(self, broker):
        for down in self._down()[:1]:
            self.start(down)

    def _down(self):
        return [broker for broker in self.brokers.values() if not broker.is_up]

    def start(self, broker):
        self._register(broker)
        broker.start(broker.life, self.now)
        broker.log.config = broker.config

    def _register(self, broker):
        self.lives += 1
        broker.life = self.lives
        self.controller.events.append((broker.number, broker.life, True))

    def _end_session(self, broker):
        self.controller.events.append((broker.number, broker.life, False))

    def change_min_isr(self, broker):
        """Change the setting, or let the controller or a broker hear of it."""
        act = self.random.randrange(3)
        if act == 0:
            self.min_isr = 3 - self.min_isr
        elif act == 1:
            self.controller.min_isr = self.min_isr
        else:
            self._hear_min_isr(broker)

    def _hear_min_isr(self, broker):
        broker.config = replace(broker.config, min_insync_replicas=self.min_isr)
        if broker.is_up:
            broker.log.config = broker.config
            if broker.leads is not None:
                broker.leads.configured(self.now)

    def store(self, broker):
        if broker.is_up:
            broker.stored = offset_checkpoint.encode([broker.log])

    def pass_time(self, broker):
        self.ms += LAG_MS

    # --- checks --------------------------------------------------------------------------------------------------

    def check(self):
        leaders_first = sorted(self.brokers.values(), key=lambda broker: broker.leads is None)
        for broker in leaders_first:
            if not broker.is_up:
                continue
            watermark = broker.log.high_watermark
            visible = broker.history(watermark)
            if broker.leads is None:
                assert visible == self.committed[:watermark], f"{broker.number} shows what is not committed"
                continue
            assert watermark >= broker.watermark, f"the high watermark of {broker.number} went back to {watermark}"
            has_moved, broker.watermark = watermark > broker.watermark, watermark
            is_allowed = broker.leads.has_min_isr and not broker.leads.state.elr
            assert is_allowed or not has_moved, f"{broker.number} commits with the ISR {broker.leads.isr}"
            shared = min(watermark, len(self.committed))
            assert visible[:shared] == self.committed[:shared], f"{broker.number} commits another history"
            self.committed += visible[shared:]

    def heal(self):
        """Let all go well until every replica is in sync, and all logs are equal."""
        self.min_isr = 2
        self.controller.min_isr = 2
        for broker in self.brokers.values():
            self.start_one(broker)
        for broker in self.brokers.values():
            self._hear_min_isr(broker)
        for _ in range(ROUNDS_MAX):
            if self.is_healed():
                return
            self.ms += 200
            for broker in self.brokers.values():
                for act in (self.look, self.obey, self.propose, self.fetch, self.take_answer):
                    act(broker)
                    self.check()
                for act in (self.answer, self.alter):
                    act(broker, is_lossy=False)
                    self.check()
        ends = [broker.log.log_end_offset for broker in self.brokers.values()]
        raise AssertionError(f"not healed: {self.controller.state}, ends {ends}")

    def is_healed(self):
        logs = [broker.log for broker in self.brokers.values()]
        waits = self.controller.events or any(self.controller.orders.values())
        if waits or len(self.controller.state.isr) < len(REPLICAS):
            return False
        ends = {(log.log_end_offset, log.high_watermark) for log in logs}
        return len(ends) == 1 and all(log.log_end_offset == log.high_watermark for log in logs)

    def check_equal(self):
        logs = [broker.log for broker in self.brokers.values()]
        assert len({bytes_of(log) for log in logs}) == 1 and len({tuple(ids_of(log).items()) for log in logs}) == 1
        ids = list(ids_of(logs[0]).values())
        assert ids == sorted(set(ids)), "ids rise over all leaders"
        assert len(ids) == logs[0].log_end_offset
