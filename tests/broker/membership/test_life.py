"""Rules W1 to W4, in a cluster of real engines: a broker that lost power leads only if no other has more records."""

import pytest

from broker.cluster.documents import NEW_DIRECTORY, NO_LIFE, Life, TopicPartition
from broker.log.recovery import stored_checkpoint
from broker.log.storage.memory_storage import MemoryStorage
from broker.membership.directory_life import FILE, read_life
from broker.metadata.topic import NO_LEADER
from broker.wire.errors import ErrorCode
from flakelog.operations.directory_check import CLAIMS
from tests.broker.engine_client import ELECT_LEADERS
from tests.broker.handlers.rights_client import STANDARD
from tests.broker.membership.cluster_steps import alter
from tests.broker.membership.replicated_cluster import ReplicatedCluster

ALL = (1, 2, 3)
TOPIC = 2
LOG_FILE = "flights-0/00000000000000000000.log"
JOINED_MS = 5_000
"""Within this time a broker that is back has copied what it lacks, and has joined the ISR."""


class PoweredCluster(ReplicatedCluster):
    """A cluster whose topic `flights` has one record, and whose brokers can be looked at by the controller."""

    def __init__(self, **configs):
        super().__init__()
        self.create("flights", **configs)
        assert self.produce("flights", b"a") == (ErrorCode.NONE, 0)
        self.later(JOINED_MS)

    @property
    def leadership(self):
        return self.controller.member.controller.context.leadership[TopicPartition("flights", 0)]

    def life(self, broker_id):
        """Return what the controller has read of a broker's life."""
        return self.controller.member.controller.context.brokers[broker_id].life

    def epoch(self, broker_id):
        return self.nodes[broker_id].member.broker_epoch

    def stored(self, broker_id):
        file = self.nodes[broker_id].storage.open(FILE)
        stored, damage = read_life(file.read(0, file.size))
        assert damage is None
        return stored

    def lose_log(self, broker_id):
        """Let a sync of a broker's log fail."""
        self.nodes[broker_id].storage.failing_syncs.add(LOG_FILE)
        log = self.log(broker_id, "flights")
        log.ask_sync(soon=True)
        self.settle()
        assert log.offline is not None

    def end_all(self, end):
        """End all brokers before any of them hears of another's end."""
        for broker_id in ALL:
            end(broker_id)
        for broker_id in ALL:
            self.expire(broker_id)

    def start(self, *broker_ids):
        for broker_id in broker_ids:
            self.restart(broker_id)
        self.later(JOINED_MS)

    def lines_with(self, words):
        return [line for node in self.nodes.values() for line in node.reported if words in line]


@pytest.fixture
def cluster():
    return PoweredCluster()


# --- W1: whole data ---------------------------------------------------------------------------------------------


def test_a_new_directory_is_not_whole(cluster):
    assert [cluster.life(broker_id) for broker_id in ALL] == [Life(False, NEW_DIRECTORY)] * 3


def test_a_broker_with_a_new_checkpoint_is_not_whole_and_the_others_drop_nothing(cluster):
    """Its start cuts a log at the first damage, also where the records were confirmed long ago."""
    for value in b"bcde":
        cluster.produce("flights", bytes([value]))
    cluster.later(120_000)
    first = cluster.leader("flights")
    cluster.end_all(cluster.kill)
    storage = cluster.nodes[first].storage
    log = storage.open(LOG_FILE)
    data = bytearray(log.read(0, log.size))
    data[log.size // 2] ^= 1
    storage.replace(LOG_FILE, bytes(data))
    stored_checkpoint.begin(storage, CLAIMS)
    cluster.start(first)
    assert not cluster.life(first).whole and cluster.leader("flights") == NO_LEADER
    cluster.start(*(broker_id for broker_id in ALL if broker_id != first))
    cluster.later(30_000)
    assert [cluster.log(broker_id, "flights").log_end_offset for broker_id in ALL] == [5] * 3
    assert not cluster.lines_with("committed records")


def test_a_broker_that_was_killed_has_whole_data_and_tells_its_last_life(cluster):
    last = cluster.epoch(3)
    cluster.kill_and_expire(3)
    cluster.start(3)
    assert cluster.life(3) == Life(True, last)


def test_so_has_one_that_was_stopped_even_if_its_machine_was_switched_off_then(cluster):
    last = cluster.epoch(3)
    cluster.stop(3)
    cluster.cut_power(3)
    cluster.start(3)
    assert cluster.life(3) == Life(True, last)


def test_one_that_lost_power_has_not_and_says_so(cluster):
    last = cluster.epoch(3)
    cluster.cut_power(3)
    cluster.expire(3)
    cluster.start(3)
    assert cluster.life(3) == Life(False, last)
    assert len(cluster.lines_with("the machine of this broker stopped uncleanly")) == 1


def test_a_broker_that_is_killed_before_an_order_comes_after_a_power_cut_is_still_not_whole(cluster):
    last, controller = cluster.epoch(3), cluster.controller.id
    cluster.cut_power(3)
    cluster.expire(3)
    cluster.cut_pairs = {(controller, 3)}
    for _ in range(2):
        cluster.restart(3)
        assert cluster.life(3) == Life(False, last)
        cluster.kill_and_expire(3)
    cluster.cut_pairs = set()
    cluster.start(3)
    assert cluster.life(3) == Life(False, last)
    ordered = cluster.epoch(3)
    cluster.kill_and_expire(3)
    cluster.start(3)
    assert cluster.life(3) == Life(True, ordered)


def test_a_damaged_file_counts_as_that_of_a_new_directory(cluster):
    cluster.stop(3)
    cluster.nodes[3].storage.files[FILE].data[:4] = b"oops"
    cluster.start(3)
    assert cluster.life(3) == Life(False, -1)
    assert len(cluster.lines_with("life: its CRC does not hold")) == 1
    assert cluster.stored(3).broker_epoch == cluster.epoch(3)


def test_an_order_is_answered_once_the_directory_names_the_life_that_it_is_for(cluster):
    controller = cluster.controller.member.controller
    assert controller.broker_id == 1
    last = cluster.epoch(3)
    cluster.nodes[3].broker.hold_syncs()
    cluster.expire(3)
    assert cluster.epoch(3) > last == cluster.stored(3).broker_epoch
    assert not controller.have_answered(controller.sent)
    cluster.nodes[3].broker.release()
    cluster.settle()
    assert cluster.stored(3).broker_epoch == cluster.epoch(3)
    assert controller.have_answered(controller.sent)


def test_on_a_full_disk_an_order_is_carried_out_and_the_directory_names_the_life_later(cluster):
    last = cluster.epoch(3)
    cluster.nodes[3].storage.free_bytes = 0
    cluster.expire(3)
    cluster.later(JOINED_MS)
    assert cluster.isr("flights") == ALL and cluster.stored(3).broker_epoch == last
    assert cluster.lines_with("the state of this broker's life could not be written")
    cluster.nodes[3].storage.free_bytes = None
    cluster.kill_and_expire(2)
    assert cluster.stored(3).broker_epoch == cluster.epoch(3)


def test_a_log_that_goes_offline_makes_the_next_life_not_whole(cluster):
    """The kernel may have dropped what it could not write, and the controller may not have heard of it."""
    last, controller = cluster.epoch(3), cluster.controller.id
    cluster.cut_pairs = {(controller, 3), (3, controller)}
    cluster.lose_log(3)
    cluster.kill_and_expire(3)
    cluster.nodes[3].storage.failing_syncs.clear()
    cluster.cut_pairs = set()
    cluster.start(3)
    assert cluster.life(3) == Life(False, last)
    assert cluster.isr("flights") == ALL and cluster.leadership.lives[3] == cluster.epoch(3)


def test_so_does_one_that_goes_offline_at_the_stop(cluster):
    cluster.produce("flights", b"b")
    cluster.later(JOINED_MS)
    last = cluster.epoch(3)
    cluster.nodes[3].storage.failing_syncs.add(LOG_FILE)
    cluster.stop(3)
    cluster.nodes[3].storage.failing_syncs.clear()
    cluster.start(3)
    assert cluster.life(3) == Life(False, last)


def test_a_truncation_that_waits_for_space_at_the_stop_loses_nothing(cluster):
    cluster.produce_alone("flights")
    cluster.cut_pairs = set()
    cluster.kill_and_expire(1)
    cluster.produce("flights", b"b")
    cluster.restart(1)
    cluster.nodes[1].storage.free_bytes = 0
    cluster.later(JOINED_MS)
    assert "when the disk has space" in cluster.nodes[1].broker.services.logs.offline["flights-0"]
    cluster.stop(1)
    cluster.nodes[1].storage.free_bytes = None
    cluster.start(1)
    assert cluster.life(1).whole and set(cluster.isr("flights")) == set(ALL)


def test_a_session_that_ends_leaves_the_other_logs_of_its_process_whole(cluster):
    last = cluster.epoch(3)
    cluster.lose_log(3)
    cluster.expire(3)
    cluster.later(JOINED_MS)
    assert cluster.life(3) == Life(True, last) and cluster.isr("flights") == (1, 2)


def test_without_space_for_the_mark_a_clean_stop_makes_nothing_whole(cluster):
    controller = cluster.controller.id
    cluster.cut_power(3)
    cluster.expire(3)
    cluster.cut_pairs = {(controller, 3)}
    cluster.nodes[3].storage.free_bytes = 0
    cluster.restart(3)
    assert not cluster.life(3).whole and cluster.lines_with("the state of this broker's life could not be written")
    cluster.nodes[3].storage.free_bytes = None
    cluster.stop(3)
    cluster.cut_pairs = set()
    cluster.start(3)
    assert not cluster.life(3).whole


# --- W2 and W3: trusted members -----------------------------------------------------------------------------------


def test_a_broker_that_lost_power_copies_what_it_lacks_before_it_is_in_sync_again(cluster):
    cluster.cut_power(3)
    cluster.expire(3)
    assert cluster.isr("flights") == (1, 2)
    cluster.cut_pairs = {(3, 1)}
    cluster.start(3)
    assert cluster.isr("flights") == (1, 2)
    cluster.cut_pairs = set()
    cluster.later(JOINED_MS)
    assert cluster.isr("flights") == ALL and cluster.ends("flights") == dict.fromkeys(ALL, 1)
    assert cluster.leadership.lives[3] == cluster.epoch(3)


@pytest.mark.parametrize("power, eligible", [(True, ()), (False, (2,))])
def test_an_eligible_leader_that_lost_power_is_none_any_more(cluster, power, eligible):
    cluster.kill_and_expire(3)
    (cluster.cut_power if power else cluster.kill)(2)
    cluster.expire(2)
    assert (cluster.leadership.isr, cluster.leadership.elr) == ((1,), (2,))
    cluster.cut_pairs = {(2, 1)}
    cluster.start(2)
    assert (cluster.leadership.isr, cluster.leadership.elr) == ((1,), eligible)


def test_of_all_that_stopped_those_without_a_power_cut_lead(cluster):
    cluster.kill(2)
    for broker_id in (1, 3):
        cluster.cut_power(broker_id)
    for broker_id in ALL:
        cluster.expire(broker_id)
    cluster.start(1, 3)
    assert cluster.leadership.leader == NO_LEADER and cluster.leadership.lives[1] == NO_LIFE
    (problem,) = cluster.controller.member.problems
    assert problem.startswith("flights-0 has no leader: brokers 1, 3 may lack records since an unclean stop")
    assert cluster.lines_with(problem) == [problem]
    cluster.start(2)
    assert cluster.leadership.leader == 2 and cluster.isr("flights") == ALL
    assert cluster.consume("flights") == [b"a"]


def test_a_directory_that_was_restored_is_not_trusted(cluster):
    """Its copy was made after a clean stop, but the broker has lived on since."""
    cluster.stop(3)
    copy = cluster.nodes[3].storage.power_cut(lambda n: 0)
    cluster.start(3)
    assert cluster.produce("flights", b"b") == (ErrorCode.NONE, 1)
    cluster.end_all(cluster.kill)
    cluster.restart(3, storage=copy)
    cluster.later(JOINED_MS)
    assert cluster.life(3).whole and cluster.leadership.leader == NO_LEADER
    cluster.start(1)
    assert cluster.leadership.leader == 1 and cluster.consume("flights") == [b"a", b"b"]
    assert cluster.isr("flights") == (1, 3) and cluster.ends("flights") == {1: 2, 3: 2}


# --- W4: a power cut of all --------------------------------------------------------------------------------------


def test_after_a_power_cut_of_all_the_first_of_the_isr_leads_once_all_are_back_and_the_operator_hears_of_it():
    cluster = PoweredCluster(flakelog_durable_acks="true")
    cluster.end_all(cluster.cut_power)
    cluster.start(3, 2)
    assert cluster.leadership.leader == NO_LEADER
    cluster.start(1)
    assert cluster.leadership.leader == 1 and cluster.isr("flights") == ALL
    assert cluster.consume("flights") == [b"a"]
    (line,) = cluster.lines_with("flights-0: broker 1 leads, because")
    assert "all its replicas in sync, brokers 1, 2, 3, are back from unclean stops" in line
    assert sum(node.member.controller.unclean_elections for node in cluster.nodes.values()) == 1


def alone_in_sync(cluster):
    """Stop brokers 1 and 2, and have broker 3 take a record without them. Return its directory when it has stopped."""
    cluster.stop(1)
    cluster.stop(2)
    assert cluster.produce("flights", b"b") == (ErrorCode.NONE, 1)
    cluster.stop(3)
    return cluster.nodes[3].storage


def test_a_replaced_disk_of_the_only_broker_in_sync_wipes_no_other_copy():
    cluster = PoweredCluster(min_insync_replicas=1)
    alone_in_sync(cluster)
    cluster.restart(3, storage=MemoryStorage())
    cluster.later(JOINED_MS)
    cluster.start(1, 2)
    assert cluster.leadership.leader == NO_LEADER and cluster.ends("flights") == {1: 1, 2: 1, 3: 0}
    (problem,) = cluster.controller.member.problems
    assert problem == (
        "flights-0 has no leader: broker 3 came with an empty data directory, and only replicas in sync have all "
        "records: start broker 3 with the directory from before, or ask for an unclean election"
    )
    cluster.stop(3)
    cluster.start(3)  # by now the new directory has a life
    assert cluster.leadership.leader == NO_LEADER


def test_the_right_disk_leads_when_it_is_back_in_the_place_of_an_empty_one():
    cluster = PoweredCluster(min_insync_replicas=1)
    directory = alone_in_sync(cluster)
    cluster.restart(3, storage=MemoryStorage())
    cluster.later(JOINED_MS)
    cluster.stop(3)
    cluster.restart(3, storage=directory)
    cluster.later(JOINED_MS)
    assert cluster.leadership.leader == 3 and cluster.consume("flights") == [b"a", b"b"]
    cluster.start(1, 2)
    assert cluster.isr("flights") == ALL and cluster.ends("flights") == dict.fromkeys(ALL, 2)


def test_an_unclean_election_takes_a_copy_with_records_before_an_empty_one():
    cluster = PoweredCluster(min_insync_replicas=1)
    cluster.stop(2)
    cluster.stop(3)
    assert cluster.produce("flights", b"b") == (ErrorCode.NONE, 1)
    cluster.stop(1)
    cluster.restart(1, storage=MemoryStorage())  # the first of the assignment
    cluster.later(JOINED_MS)
    cluster.start(2, 3)
    assert cluster.leadership.leader == NO_LEADER
    assert alter(cluster, cluster.controller.id, TOPIC, "flights", unclean_leader_election_enable="true") == 0
    cluster.later(JOINED_MS)
    assert cluster.leadership.leader == 2 and cluster.consume("flights") == [b"a"]
    assert cluster.ends("flights") == dict.fromkeys(ALL, 1)


UNCLEAN = {"election_type": 1, "topic_partitions": None, "timeout": 10_000}


def start_alone_and_empty(cluster, broker_id):
    """Stop all brokers, and start one of them with an empty directory."""
    for stopped in ALL:
        cluster.stop(stopped)
    cluster.restart(broker_id, storage=MemoryStorage())
    cluster.later(JOINED_MS)


def test_copies_that_an_empty_leader_cuts_whole_say_what_they_drop():
    """An operator has asked for it. The high watermark of a broker that has just started may be late."""
    cluster = PoweredCluster(min_insync_replicas=1)
    assert cluster.produce("flights", b"b", b"c") == (ErrorCode.NONE, 1)
    cluster.later(JOINED_MS)
    start_alone_and_empty(cluster, 3)
    assert cluster.client(3).ask(ELECT_LEADERS, 2, UNCLEAN).error_code == 0
    cluster.start(1, 2)
    assert cluster.leadership.leader == 3 and cluster.ends("flights") == dict.fromkeys(ALL, 0)
    for broker_id in (1, 2):
        (line,) = [line for line in cluster.nodes[broker_id].reported if "drops" in line]
        dropped, committed = line.split(": ")
        assert dropped == "flights-0 drops 3 records, at offsets 0 to 2, which its leader does not have"
        assert committed == "it was elected without them, and at least 3 of them were committed"


def test_an_unclean_election_that_an_operator_asks_for_is_a_line_of_the_audit_log():
    cluster = ReplicatedCluster(authorizer_class_name=STANDARD, super_users="User:ANONYMOUS")
    cluster.create("flights", min_insync_replicas=1)
    cluster.later(JOINED_MS)
    start_alone_and_empty(cluster, 3)
    for _ in range(2):  # the second election changes no leader
        assert cluster.client(3).ask(ELECT_LEADERS, 2, UNCLEAN).error_code == 0
    (line,) = (line for line in cluster.nodes[3].reported if "election" in line and line.startswith("User:ANONYMOUS"))
    assert line.endswith("held an unclean election for flights-0")


def test_of_replicas_that_are_all_empty_the_first_leads(cluster):
    cluster.end_all(cluster.kill)
    for broker_id in ALL:
        cluster.restart(broker_id, storage=MemoryStorage())
    cluster.later(JOINED_MS)
    assert cluster.isr("flights") == ALL and cluster.ends("flights") == dict.fromkeys(ALL, 0)
    (line,) = cluster.lines_with("flights-0: broker 1 leads, because")
    assert line.endswith("brokers 1, 2, 3, are back with empty data directories. All records are lost")


def test_after_a_kill_of_all_the_first_leads_and_nothing_is_said(cluster):
    cluster.end_all(cluster.kill)
    cluster.start(*ALL)
    assert cluster.isr("flights") == ALL and cluster.consume("flights") == [b"a"]
    assert not cluster.lines_with("leads, because")
