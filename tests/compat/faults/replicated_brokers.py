"""Three brokers whose topics have three copies: servers with a ZooKeeper, or the processes of one server.

    brokers = ReplicatedServers(directory, zookeeper.hosts, stack)
    brokers.place(2, first=True)                broker 2 leads the topics that are created from now on
    brokers.kill(2); brokers.start(2)
    brokers.await_level()                       all replicas are in sync, and their logs are equal
"""

import os
import signal

from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.cluster_servers import ASK_SECONDS, Servers
from tests.compat.several_processes import Brokers, SeveralProcesses
from tests.compat.stock_clients import QUIET
from tests.patience import until

NUMBERS = 1, 2, 3
ADMIN_MS = 10_000
"""How long a client waits for a broker that hangs, before it asks another one."""
SETTINGS = {
    "auto.create.topics.enable": "false",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "replica.lag.time.max.ms": "10000",
}


class Replicated:
    """The methods of both kinds of brokers.

    `order` is the replica list of the first partition of a new topic. The other partitions have the same list if
    `one_leads`; otherwise each list starts one broker later.
    """

    order = NUMBERS
    one_leads = False
    _admin = None

    @property
    def admin(self):
        """A client that stays open, because the tests ask it for the leaders again and again."""
        if self._admin is None:
            settings = {"bootstrap.servers": self.bootstrap, "socket.timeout.ms": ADMIN_MS}
            self._admin = AdminClient(settings | QUIET)
        return self._admin

    def new_topic(self, topic, partitions):
        turns = [0 if self.one_leads else number % len(NUMBERS) for number in range(partitions)]
        assignment = [[*self.order[turn:], *self.order[:turn]] for turn in turns]
        return NewTopic(topic, partitions, replica_assignment=assignment)

    def others(self, number):
        return [other for other in NUMBERS if other != number]

    def place(self, number, *, first):
        """Let topics that are created from now on be led by a broker, or followed by it as the last."""
        self.order = (number, *self.others(number)) if first else (*self.others(number), number)
        self.one_leads = True

    def place_evenly(self):
        self.order, self.one_leads = NUMBERS, False

    def choose(self, kind):
        """Choose a broker of a kind, such as "leader and controller": it leads the topics that are created from now on
        if it is a leader, and else follows them.
        """
        controller = self.controller
        number = controller if "controller" in kind else self.others(controller)[0]
        self.place(number, first="leader" in kind)
        return number

    def mend(self):
        """Begin a round with all brokers, even if the round before failed."""
        until(lambda: len(self.brokers) == len(NUMBERS), "all brokers", ASK_SECONDS)
        self.await_in_sync()

    # --- replicas ------------------------------------------------------------------------------------------------

    def await_in_sync(self):
        """Wait until all replicas of all partitions are in sync."""
        until(lambda: not self.out_of_sync(), "all replicas in sync", ASK_SECONDS)

    def out_of_sync(self):
        """Return the partitions whose ISR is not full, as the brokers tell clients."""
        return [
            (topic.topic, number, partition.leader, partition.isrs)
            for topic in self.topics.values()
            for number, partition in topic.partitions.items()
            if partition.leader < 0 or len(partition.isrs) < len(NUMBERS)
        ]

    def await_level(self):
        """Wait until all replicas are in sync, and check that all three have equal logs, byte by byte."""
        self.await_in_sync()
        for at in self._partitions():
            until(lambda: self._is_level(at), f"equal logs of {at}", ASK_SECONDS)

    def _is_level(self, at):
        return len({self._bytes(at, number) for number in NUMBERS}) == 1

    def _partitions(self):
        return [f"{name}-{number}" for name, topic in self.topics.items() for number in topic.partitions]

    def _bytes(self, at, number):
        """Return what the segments of a partition have, in order."""
        return b"".join(path.read_bytes() for path in sorted(self.directory(number, at).glob("*.log")))


class ReplicatedServers(Replicated, Servers):
    """Three servers with one ZooKeeper."""

    def __init__(self, directory, zookeeper, stack, settings=None, clocks=None, **more):
        """Start the brokers; `settings` replace those of replicated brokers, `clocks` are for some of them, by their
        numbers, and `more` are arguments of Servers."""
        self.clocks = clocks or {}
        prefixes = {number: clock.prefix for number, clock in self.clocks.items()}
        super().__init__(directory, zookeeper, stack, settings=SETTINGS | (settings or {}), prefixes=prefixes, **more)

    @property
    def log(self):
        return "".join(server.log for server in self.servers.values())

    def kill(self, number):
        self[number].kill()

    def start(self, number):
        """Start a broker that was killed or stopped."""
        self[number].start()

    def mend(self):
        for server in self.servers.values():
            if server.running:
                server.send_signal(signal.SIGCONT)
            else:
                server.start()
        super().mend()

    def pause(self, number):
        self[number].send_signal(signal.SIGSTOP)

    def resume(self, number):
        self[number].send_signal(signal.SIGCONT)


class ReplicatedProcesses(Replicated, Brokers):
    """The three processes of one server. The server restarts a killed process."""

    def __init__(self, directory, stack, settings=None):
        server = SeveralProcesses(directory, len(NUMBERS), SETTINGS | (settings or {}), stack=stack)
        super().__init__(stack.enter_context(server))

    @property
    def server(self):
        return self.servers[1]

    def directory(self, number, at):
        data = self.server.data_dir
        return (data if number == 1 else data / "nodes" / str(number)) / at

    @property
    def log(self):
        return self.server.log

    def kill(self, number):
        """Kill a process, and return once another has taken its place."""
        self.server.kill_child(number)

    def start(self, number):
        """Do nothing: the server starts a killed process again."""

    def pause(self, number):
        os.kill(self.server.child(number), signal.SIGSTOP)

    def resume(self, number):
        os.kill(self.server.child(number), signal.SIGCONT)
