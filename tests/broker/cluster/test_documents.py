import pytest

from broker.cluster.documents import (
    Assignment,
    DamagedDocument,
    Endpoint,
    LeaderAndIsr,
    Life,
    ProducerIdBlock,
    Registration,
    Topic,
    TopicPartition,
    decode_cluster_id,
    decode_config,
    decode_config_change,
    decode_controller,
    decode_epoch,
    decode_isr_change,
    decode_log_dir_event,
    encode_cluster_id,
    encode_config,
    encode_config_change,
    encode_controller,
    encode_log_dir_event,
)
from coordination.port import Node
from tests.golden.controller_acts import writes

STATE = b'{"controller_epoch":2,"leader":1,"version":1,"leader_epoch":3,"isr":[1,3]}'


def data_at(path, zxid):
    return next(write.data for write in writes(zxid, zxid) if write.path == path and write.data).encode()


def test_registration_equals_kafkas_bytes():
    golden = data_at("/brokers/ids/1", 56)
    registration = Registration((Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 24021),), 1795472848648)
    assert registration.encode() == golden
    assert Registration.decode("/brokers/ids/1", golden) == registration


def test_registration_with_rack_listeners_and_the_key_of_ours():
    """`rack` stands where Kafka's hash map puts it; Kafka's brokers ignore `flakelog` (fact 7)."""
    registration = Registration(
        (Endpoint("IN", "SSL", "::1", 1), Endpoint("OUT", "SASL_SSL", "h", 2)), 5, "r1", Life(whole=True, last=7)
    )
    text = registration.encode().decode()
    assert '"endpoints":["IN://[::1]:1","OUT://h:2"],"rack":"r1","jmx_port":-1,"port":-1,"host":null' in text
    assert text.endswith('"flakelog":{"whole":true,"last":7}}')
    assert Registration.decode("/brokers/ids/1", text.encode()) == registration


def test_topic_equals_kafkas_bytes():
    golden = data_at("/brokers/topics/t", 65)
    topic = Topic.decode("/brokers/topics/t", golden)
    assert topic.assignments == {0: Assignment((1, 2, 3)), 1: Assignment((2, 3, 1))}
    assert topic.encode() == golden


def test_topic_in_a_reassignment_equals_kafkas_bytes():
    golden = (
        b'{"partitions":{"0":[3,2,1]},"topic_id":"AUtKbSKPTie14sWouM8WaQ","adding_replicas":{"0":[3]},'
        b'"removing_replicas":{"0":[1]},"version":3}'
    )
    topic = Topic.decode("/brokers/topics/m", golden)
    assert topic.assignments == {0: Assignment((3, 2, 1), (3,), (1,))}
    assert topic.encode() == golden


def test_state_equals_kafkas_bytes():
    state = LeaderAndIsr.decode("/p", Node(STATE, 5, 0))
    assert state == LeaderAndIsr(1, (1, 3), leader_epoch=3, partition_epoch=5, controller_epoch=2)
    assert state.encode() == STATE


def test_state_keeps_the_key_of_ours_and_drops_unknown_ones():
    own = b',"flakelog":{"elr":[2],"lives":{"1":4294967320,"3":4294967311}}'
    state = LeaderAndIsr.decode("/p", Node(STATE[:-1] + own + b',"other":1}', 0, 0))
    assert (state.elr, state.lives, state.members) == ((2,), {1: 4294967320, 3: 4294967311}, (1, 3, 2))
    assert state.encode() == STATE[:-1] + own + b"}"


def test_state_without_the_key_of_ours_has_no_elr_and_no_lives():
    """A controller of Kafka's drops the key when it writes a state (fact 7)."""
    state = LeaderAndIsr.decode("/p", Node(STATE, 5, 0))
    assert (state.elr, state.lives) == ((), {})


def test_notifications_equal_kafkas_bytes():
    assert encode_log_dir_event(3) == b'{"version":1,"broker":3,"event":1}'
    assert decode_log_dir_event("/e", encode_log_dir_event(3)) == 3
    changed = b'{"version":1,"partitions":[{"topic":"t","partition":1}]}'
    assert decode_isr_change("/i", changed) == [TopicPartition("t", 1)]


def test_state_of_an_unclean_leader_has_kafkas_order():
    state = LeaderAndIsr(1, (1,), leader_epoch=3, controller_epoch=2, recovery_state=1)
    assert b'"version":1,"leader_recovery_state":1,"leader_epoch":3' in state.encode()


def test_controller_and_blocks_equal_kafkas_bytes():
    golden = data_at("/controller", 58)
    assert encode_controller(1, 1795472848912) == golden
    assert decode_controller(golden) == 1
    assert decode_controller(b'{"version":1,"brokerid":7,"timestamp":"1"}') == 7
    block = data_at("/latest_producer_id_block", 144)
    assert ProducerIdBlock.decode(block) == ProducerIdBlock(2, 0, 999)
    assert ProducerIdBlock(2, 0, 999).encode() == block


def test_settings_and_cluster_id_equal_kafkas_bytes():
    golden = data_at("/config/topics/__transaction_state", 137)
    assert encode_config(decode_config("/c", golden)) == golden
    assert encode_config({}) == data_at("/config/topics/t", 64)
    assert decode_config("/c", b"") == {}
    assert encode_config_change("topics/t") == b'{"version":2,"entity_path":"topics/t"}'
    assert decode_config_change("/c", encode_config_change("brokers/<default>")) == "brokers/<default>"
    assert encode_cluster_id("x") == b'{"version":"1","id":"x"}'
    assert decode_cluster_id(encode_cluster_id("x")) == "x"


@pytest.mark.parametrize(
    "decode",
    [
        lambda data: Registration.decode("/n", data),
        lambda data: Topic.decode("/n", data),
        lambda data: LeaderAndIsr.decode("/n", Node(data, 0, 0)),
        lambda data: decode_log_dir_event("/n", data),
        lambda data: decode_isr_change("/n", data),
        ProducerIdBlock.decode,
        decode_controller,
        decode_cluster_id,
    ],
)
@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"7", b"{}", b'{"isr":["x"],"partitions":{"a":1},"endpoints":[1]}'])
def test_damaged_json_is_an_error_by_name(decode, data):
    with pytest.raises(DamagedDocument, match="/"):
        decode(data)


@pytest.mark.parametrize("own", [b"7", b'{"elr":7}', b'{"elr":["x"]}', b'{"lives":[1]}', b'{"lives":{"1":"x"}}'])
def test_damaged_key_of_ours_in_a_state_is_an_error_by_name(own):
    with pytest.raises(DamagedDocument, match="/p"):
        LeaderAndIsr.decode("/p", Node(STATE[:-1] + b',"flakelog":' + own + b"}", 0, 0))


@pytest.mark.parametrize("own", [b"7", b"{}", b'{"whole":1,"last":2}', b'{"whole":true}', b'{"whole":true,"last":[]}'])
def test_damaged_key_of_ours_in_a_registration_is_an_error_by_name(own):
    with pytest.raises(DamagedDocument, match="/n"):
        Registration.decode("/n", b'{"endpoints":[],"flakelog":' + own + b"}")


def test_damaged_epoch_is_an_error_by_name():
    with pytest.raises(DamagedDocument, match="controller_epoch"):
        decode_epoch(b"x")
