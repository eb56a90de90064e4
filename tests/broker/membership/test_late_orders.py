"""Orders of the controller to a broker that is busy: with a truncation, with its files, with orders before."""

from broker.client.address import Address
from broker.client.connection import ClientConnection
from broker.client.message_exchange import exchange_of
from broker.log.epochs_begun import FILE as EPOCHS_BEGUN
from broker.log.epochs_begun import decode
from broker.wire.errors import ErrorCode
from tests.broker.engine_client import PRODUCE, produce_request
from tests.broker.engine_cluster import BROKERS
from tests.broker.membership.orders import leader_and_isr
from tests.broker.membership.replicated_cluster import ReplicatedCluster


def send_order(cluster, broker_id, leader, epoch, replicas=(1, 2, 3)):
    """Send a broker the order that a leader leads flights-0 in an epoch, alone in its ISR."""
    node = cluster.nodes[broker_id]
    ids = {"controller_epoch": node.member.controller_epoch, "broker_epoch": node.member.broker_epoch}
    ids["topic_id"] = node.member.image.topic("flights").id
    request = leader_and_isr("flights", (0, leader, epoch), replicas=replicas, **ids)
    _, data = ClientConnection().request(exchange_of(Address("localhost", 1), request))
    node.broker.connect(listener=BROKERS).feed(data)
    cluster.settle()


def test_a_log_that_is_truncated_while_its_epoch_is_written_has_the_epoch_on_the_disk_when_it_is_led():
    cluster = ReplicatedCluster()
    cluster.create("flights")
    cluster.produce("flights", b"a")
    cluster.produce_alone("flights")
    cluster.kill_and_expire(1)
    cluster.produce("flights", b"b")
    cluster.cut_pairs = {(1, 2), (1, 3)}
    cluster.restart(1)
    cluster.later(500)
    node = cluster.nodes[1]
    node.broker.hold_syncs()
    send_order(cluster, 1, 1, 50)
    cluster.cut_pairs = set()
    cluster.later(2_000)
    assert node.broker.services.replication.is_truncating("flights", 0)
    node.broker.release()
    assert node.broker.services.hosted.topic("flights").is_led_by(1, 0)
    file = node.storage.open(EPOCHS_BEGUN)
    assert [(begun.log, begun.epoch) for begun in decode(file.read(0, file.size))] == [("flights-0", 50)]
    assert cluster.log(1, "flights").epochs[-1] == (50, 2)


def test_a_partition_that_got_more_replicas_has_its_stored_high_watermark_at_the_next_start():
    cluster = ReplicatedCluster()
    cluster.create("flights", replicas=(1,), min_insync_replicas=1)
    cluster.produce("flights", b"a")
    send_order(cluster, 1, 1, 50)
    cluster.later(6_000)
    cluster.produce("flights", b"b", acks=1)
    cluster.kill_and_expire(1)
    cluster.cut_pairs = {(2, 1), (3, 1)}
    cluster.restart(1)
    assert cluster.log(1, "flights").high_watermark == 1


def test_an_order_that_leaves_one_replica_answers_what_waits_for_the_others():
    cluster = ReplicatedCluster()
    cluster.create("flights")
    cluster.cut_pairs = {(2, 1), (3, 1)}
    client = cluster.client(1)
    client.send(PRODUCE, 9, produce_request("flights", b"a", acks=-1))
    cluster.later(1_000)
    assert not client.replies()
    send_order(cluster, 1, 1, 50, replicas=(1,))
    assert [result[0].error_code for _, result in client.replies()] == [ErrorCode.NONE]
