"""Random kills of a mirror, its source and its target: nothing is lost, and consumers that move miss nothing."""

import random
from contextlib import ExitStack

import pytest

from broker.client.blocking import Client
from broker.client.errors import ClientError
from flakelog.operations.groups import commit
from flakelog.operations.groups import committed as offsets_of
from flakelog.testing import Broker
from tests.compat.mirror.kafka_node import KafkaNode
from tests.compat.mirror.mirror_process import MirrorProcess, committed_records, end_of, records_of, send, values_from
from tests.patience import until

pytestmark = pytest.mark.soak
KILLS = 20
RECORDS = 2_000  # before each kill
PARTITIONS = 3
OPEN = "copying 1 topic"


class KilledMirror:
    """A mirror whose three processes are killed; `name` is its own, its topic's and the start of its group's."""

    def __init__(self, source, target, name, mirror, seed):
        self.source, self.target, self.name, self.mirror = source, target, name, mirror
        self.group = f"{name}-readers"
        self.chance = random.Random(seed)
        self.sent = 0
        self.read = {}

    def send_and_read(self):
        """Send records, and let a group at the source go on to a random offset of each partition."""
        send(self.source.bootstrap_servers, self.name, range(self.sent, self.sent + RECORDS))
        self.sent += RECORDS
        with Client(self.source.bootstrap_servers) as client:
            for number in range(PARTITIONS):
                end, key = client.find_offset(self.name, number, -1), (self.name, number)
                self.read[key] = self.chance.randint(self.read.get(key, 0), end)
            until(lambda: self._is_committed(client), "the commit of the readers")

    def _is_committed(self, client):
        try:
            commit(client, self.group, self.read)
        except ClientError:  # a coordinator that has just started loads its groups
            return False
        return True

    def kill_one(self):
        """Wait for some records at the target, then kill one of the three processes and start it again."""
        with Client(self.target.bootstrap_servers) as client:
            wanted = self._copied(client) + self.chance.randrange(1, RECORDS)
            until(lambda: self._copied(client) >= min(wanted, self.sent), "records at the target")
        victim = self.chance.choice((self.mirror, self.source, self.target))
        victim.kill()
        if victim is self.mirror:
            starts = victim.log.count(OPEN)
            victim.start()
            until(lambda: victim.log.count(OPEN) > starts, "the mirror")
        else:
            victim.restart()

    def is_copied(self, client):
        """Return True once all values have come."""
        try:
            return committed_records(client, self.name) >= self.sent and self._values_at(client) >= self._all_values()
        except ClientError:
            return False

    def _copied(self, client):
        try:
            return end_of(client, self.name)
        except ClientError:
            return 0

    def _values_at(self, client):
        return {value for number in range(PARTITIONS) for value in values_from(client, self.name, number, 0)}

    def _all_values(self):
        return {b"%d" % value for value in range(self.sent)}


@pytest.fixture
def node_of(tmp_path):
    """Return a function that runs a broker of Flakelog or of Apache Kafka for this test alone."""
    with ExitStack() as stack:
        def run(kind, name):
            return stack.enter_context(Broker() if kind == "Flakelog" else KafkaNode(tmp_path / name))

        yield run


@pytest.mark.parametrize("options", ((), ("--exactly-once",)), ids=("at-least-once", "exactly-once"))
@pytest.mark.parametrize(
    ("origin", "copy"),
    (("Flakelog", "Flakelog"), ("Flakelog", "Kafka"), ("Kafka", "Flakelog")),
    ids=("own", "to-kafka", "from-kafka"),
)
def test_twenty_random_kills_lose_nothing_and_consumers_move(node_of, name, tmp_path, origin, copy, options):
    source, target = node_of(origin, "source"), node_of(copy, "target")
    with Client(source.bootstrap_servers) as client:
        client.create_topic(name, PARTITIONS)
    servers = source.bootstrap_servers, target.bootstrap_servers
    own = "--topics", name, "--name", name, "--instance", "first", *options
    with MirrorProcess(*servers, *own, output=tmp_path / "mirror.log") as mirror:
        killed = KilledMirror(source, target, name, mirror, seed=f"{origin} {copy} {options}")
        for _ in range(KILLS):
            killed.send_and_read()
            killed.kill_one()
        killed.send_and_read()
        with Client(target.bootstrap_servers) as client:
            until(lambda: killed.is_copied(client), "all records", pause_s=1)
            until(lambda: len(offsets_of(client, killed.group)) == PARTITIONS, "the group's offsets", pause_s=0.5)
            number = committed_records(client, name)
            moved = offsets_of(client, killed.group)
            to_read = {key: values_from(client, *key, offset) for key, offset in moved.items()}
    copied = records_of(servers[1], name, number)
    wanted = records_of(servers[0], name, killed.sent)
    assert number == killed.sent or not options
    assert {n: list(dict.fromkeys(records)) for n, records in copied.items()} == wanted
    for (_, partition), offset in killed.read.items():
        unread = {value for _, _, value, _ in wanted[partition][offset:]}
        assert unread <= {*to_read[name, partition]}, f"partition {partition}: a consumer that moves misses records"
