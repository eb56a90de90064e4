"""Group members over an EngineBroker, without sockets: only `cluster.at(ms)` moves the clock."""

from broker.client.connection import ClientConnection
from broker.client.core import Address, ClientCore, advance, carry_out
from broker.client.errors import ClientError, NoAnswer, Unreachable
from broker.client.group import GroupMember, Phase, Revoke
from broker.client.group_config import GroupMemberConfig
from tests.broker.engine_client import EngineBroker

ADDRESS = Address("localhost", 9092)
CONFIG = GroupMemberConfig(session_timeout_ms=6_000, heartbeat_interval_ms=1_000, max_poll_interval_ms=30_000)
STEP_MS = 50


class Cluster:
    """A broker and the members that its tests add. `topics` maps names to numbers of partitions."""

    def __init__(self, topics, **settings):
        settings = {"group_initial_rebalance_delay_ms": 0} | settings
        self.broker = EngineBroker(**settings)
        for topic, partitions in topics.items():
            self.broker.create(topic, partitions)
        self.members = {}
        self.is_up = True

    @property
    def now_ms(self):
        return self.broker.now_ms

    def add(self, name, topics=("t",), config=CONFIG, releases=True):
        """Add a member. With `releases` it releases revoked partitions at once; otherwise the test does."""
        member = self.members[name] = Program(self, topics, config, releases)
        return member

    def at(self, now_ms):
        """Let time pass until `now_ms`, in small steps."""
        while self.now_ms < now_ms:
            self.broker.at(min(now_ms, self.now_ms + STEP_MS))
            self.run()

    def after(self, ms):
        self.at(self.now_ms + ms)

    def run(self):
        """Carry requests and answers until every member waits."""
        worked = True
        while worked:
            self.broker.at(self.now_ms)
            worked = any([program.run() for program in list(self.members.values())])

    def restart(self):
        """Stop the broker and start it again on its files."""
        self.broker = self.broker.restarted(later_ms=0)
        for program in self.members.values():
            program.disconnect()

    def owners(self):
        """Return the names of the owners of each partition, as each member believes."""
        owners = {}
        for name, program in self.members.items():
            if program.is_alive:
                for partition in program.member.owned:
                    owners.setdefault(partition, []).append(name)
        return owners

    def shares(self):
        return {name: len(program.member.owned) for name, program in self.members.items() if program.is_alive}

    def settle(self, limit_ms=60_000):
        """Let time pass until every member is stable and has released what it had to."""
        end_ms = self.now_ms + limit_ms
        while not self.is_settled:
            assert self.now_ms < end_ms, {name: p.member.phase for name, p in self.members.items()}
            self.after(STEP_MS)

    @property
    def is_settled(self):
        alive = [p.member for p in self.members.values() if p.is_alive and p.member.phase is not Phase.LEFT]
        return all(m.phase is Phase.STABLE and not m.revoking for m in alive)


class Program:
    """A process with a member. `events` are all its events; `is_alive` is False while it is stopped or dead."""

    def __init__(self, cluster, topics, config, releases):
        self.cluster = cluster
        self.config = config
        self.core = ClientCore([ADDRESS])
        self.member = GroupMember(self.core, "g", topics, config, cluster.now_ms)
        self.events = []
        self.releases = releases
        self.works = True
        self.is_busy = False  # it processes records, and takes no events
        self.is_alive = True
        self.is_reachable = True
        self.api_keys = []
        self._steps = None
        self.disconnect()

    def disconnect(self):
        """Lose the connection; a request under way gets no answer."""
        self.client = None
        self._is_cut = True

    def run(self):
        """Work once; return True if anything happened."""
        if not self.is_alive:
            return False
        now_ms = self.cluster.now_ms
        if self.works:
            self.member.polled(now_ms)
        before = len(self.events), self._steps
        if self._steps is None:
            self._steps = self.member.take(now_ms)
            if self._steps is not None:
                self._advance(None)
        else:
            self.member.tick(now_ms)
            self._receive(now_ms)
        self.take_events()
        return (len(self.events), self._steps) != before

    def _receive(self, now_ms):
        if self._is_cut:
            self._advance(Unreachable(str(ADDRESS), "the connection was lost"))
        elif now_ms >= self._sent_ms + self.config.request_timeout_ms:
            self.disconnect()
            self._advance(NoAnswer(str(ADDRESS), self.config.request_timeout_ms / 1000))
        elif self.is_reachable and self.client.received:
            data = bytes(self.client.received)
            self.client.received.clear()
            for answer in self._connection.receive(memoryview(data), is_reused=False):
                self._advance(answer.body)

    def carry_out(self, steps):
        """Carry out an operation on a separate connection; return its result."""
        client, connection = self.cluster.broker.connect(), ClientConnection()

        def ask(exchange):
            client.feed(connection.request(exchange)[1])
            (answer,) = connection.receive(memoryview(bytes(client.received)), is_reused=False)
            client.received.clear()
            return answer.body

        return carry_out(steps, ask)

    def _advance(self, outcome):
        while True:
            try:
                exchange = advance(self._steps, outcome)
            except StopIteration as done:
                result = done.value
            except ClientError as error:
                result = error
            else:
                outcome = self._send(exchange)
                if outcome is None:
                    return
                continue
            self._steps = None
            self.member.answered(result, self.cluster.now_ms)
            return

    def _send(self, exchange):
        self.api_keys.append(exchange.api_key)
        self._sent_ms = self.cluster.now_ms
        if self.client is None:
            if not self.cluster.is_up:
                return Unreachable(str(ADDRESS), "connection refused")
            self.client, self._connection = self.cluster.broker.connect(), ClientConnection()
            self._is_cut = False
        _, data = self._connection.request(exchange)
        if self.is_reachable:
            self.client.feed(data)
        return None

    def take_events(self):
        if self.is_busy:
            return
        for event in self.member.take_events():
            self.events.append(event)
            if isinstance(event, Revoke) and self.releases:
                self.member.released(event.partitions)
        self.events += self.member.take_events()

    def kill(self):
        self.is_alive = False

    def all_of(self, kind):
        """Return the partition numbers of all events of a kind."""
        return [sorted(n for _, n in event.partitions) for event in self.events if isinstance(event, kind)]
