"""The count of calls follows a message from the socket to the log and back."""

from benchmarks import calls


def names(counted):
    return [code.co_qualname for code in counted.codes]


def test_a_produce_is_counted_from_its_read_to_its_answer():
    produced = calls.produce()
    road = ["KafkaTransport.doRead", "Engine.receive", "append_batches", "KafkaTransport.send"]
    assert [name for name in names(produced) if name in road] == road
    assert {"broker/net/server.py", "broker/log/segment.py"} <= produced.files
    assert not any(path.startswith(calls.STAND_INS) for path in produced.files)


def test_a_fetch_is_counted_through_the_reader_of_the_log():
    road = ["FetchTemplates.open", "read", "KafkaTransport.send"]
    assert [name for name in names(calls.fetch()) if name in road] == road


def test_a_message_is_counted_from_its_fetch_to_its_ack():
    passed = names(calls.spout_to_ack())
    assert passed.index("PartitionManager.fetched") < passed.index("PartitionManager.next")
    assert passed.count("PartitionManager.next") >= 1 and "PartitionManager.ack_many" in passed
