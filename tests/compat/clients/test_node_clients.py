"""kafkajs and @platformatic/kafka, the Kafka clients of Node.js, unchanged, against a real server.

kafkajs is the most used client and speaks the oldest protocol; @platformatic/kafka is new and reads fields that others
skip. Every test here has also passed against Apache Kafka 4.3.1, one node without an authorizer.
"""

from itertools import count

import pytest

from tests.compat.clients.stock_node import need_node, stock_node
from tests.compat.cluster_servers import one_or_three
from tests.compat.stock_process import ClientError

SETTINGS = {"group.initial.rebalance.delay.ms": 0}
VALUES = [f"value {n} " * 20 for n in range(100)]

_numbers = count()

need_node()


@pytest.fixture(scope="module")
def node():
    with stock_node() as node:
        yield node


@pytest.fixture(scope="module")
def server(node, tmp_path_factory):
    with one_or_three(tmp_path_factory.mktemp("node"), SETTINGS) as server:
        yield server


@pytest.fixture
def kafkajs(node, server):
    """Return kafkajs("produce", topic=..., ...), which returns the client's answer or raises ClientError."""
    return lambda call, **arguments: node.ask(f"kafkajs.{call}", address=server.address, **arguments)


@pytest.fixture
def platformatic(node, server):
    return lambda call, **arguments: node.ask(f"platformatic.{call}", address=server.address, **arguments)


@pytest.fixture(params=["kafkajs", "platformatic"])
def ask(request):
    """Return the call function of each client in turn."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def topic(ask):
    name = f"node-{next(_numbers)}"
    ask("createTopic", topic=name)
    return name


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_what_one_client_writes_both_read(ask, kafkajs, platformatic, topic, codec):
    ask("produce", topic=topic, values=VALUES, codec=codec)
    expected = [[0, n, f"key-{n}", value, str(n)] for n, value in enumerate(VALUES)]
    assert kafkajs("read", topic=topic, group=f"js-{topic}", count=len(VALUES)) == expected
    assert platformatic("read", topic=topic, group=f"pl-{topic}", count=len(VALUES)) == expected


@pytest.mark.parametrize("codec", ["snappy", "lz4", "zstd"])
def test_platformatics_other_codecs(platformatic, codec):
    topic = f"node-{next(_numbers)}"
    platformatic("createTopic", topic=topic)
    platformatic("produce", topic=topic, values=VALUES, codec=codec)
    records = platformatic("read", topic=topic, group=f"pl-{topic}", count=len(VALUES))
    assert [value for _, _, _, value, _ in records] == VALUES


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_every_kind_of_acknowledgement(ask, topic, acks):
    ask("produce", topic=topic, values=["one", "two"], acks=acks)
    records = ask("read", topic=topic, group=f"acks-{topic}", count=2)
    assert [value for _, _, _, value, _ in records] == ["one", "two"]


def test_an_idempotent_producer(ask, topic):
    assert ask("produce", topic=topic, values=["one"], idempotent=True) == [[0, 0]]


def test_a_topic_nobody_created_is_made_by_the_first_message(ask):
    topic = f"node-auto-{next(_numbers)}"
    ask("produce", topic=topic, values=["first"])
    assert topic in ask("listTopics")


def test_a_group_goes_on_where_it_stands_and_is_seen_moved_and_deleted(ask, topic):
    group = f"group-{topic}"
    ask("produce", topic=topic, values=["one", "two"])
    ask("read", topic=topic, group=group, count=2)
    assert ask("groupOffset", group=group, topic=topic) == 2
    ask("produce", topic=topic, values=["three"])
    assert [record[3] for record in ask("read", topic=topic, group=group, count=1)] == ["three"]
    assert group in ask("listGroups")
    assert ask("describeGroup", group=group).capitalize() == "Empty"
    ask("produce", topic=topic, values=["four"])
    ask("setGroupOffset", group=group, topic=topic, offset=1)
    assert ask("groupOffset", group=group, topic=topic) == 1
    assert [record[3] for record in ask("read", topic=topic, group=group, count=3)] == ["two", "three", "four"]
    ask("deleteGroup", group=group)
    assert group not in ask("listGroups")


def test_members_of_kafkajs_share_a_topic_and_take_over(kafkajs):
    topic = f"node-{next(_numbers)}"
    kafkajs("createTopic", topic=topic, partitions=4)
    first, second = f"{topic}-1", f"{topic}-2"
    kafkajs("join", name=first, group=topic, topic=topic)
    assert kafkajs("share", names=[first], partitions=4) == [[0, 1, 2, 3]]
    kafkajs("join", name=second, group=topic, topic=topic)
    assert sorted(sum(kafkajs("share", names=[first, second], partitions=4), [])) == [0, 1, 2, 3]
    kafkajs("leave", name=first)
    assert kafkajs("share", names=[second], partitions=4) == [[0, 1, 2, 3]]
    kafkajs("leave", name=second)


def test_a_topic_is_made_once_and_deleted(kafkajs, platformatic):
    """kafkajs returns false for a topic that exists already; @platformatic/kafka throws."""
    topic = f"node-{next(_numbers)}"
    assert kafkajs("createTopic", topic=topic) is True
    assert kafkajs("createTopic", topic=topic) is False
    with pytest.raises(ClientError) as caught:
        platformatic("createTopic", topic=topic)
    assert caught.value.name == "TOPIC_ALREADY_EXISTS"
    assert topic in platformatic("listTopics")
    kafkajs("deleteTopic", topic=topic)
    assert topic not in platformatic("listTopics")


def test_the_cluster_as_kafkajs_sees_it(kafkajs, server):
    cluster = kafkajs("describeCluster")
    (node,) = cluster["brokers"]
    assert f"{node['host']}:{node['port']}" == server.address
    assert cluster["controller"] == node["nodeId"] and len(cluster["clusterId"]) == 22


def test_offsets_as_kafkajs_sees_them(kafkajs):
    topic = f"node-{next(_numbers)}"
    kafkajs("createTopic", topic=topic)
    kafkajs("produce", topic=topic, values=["one", "two"])
    assert kafkajs("topicOffsets", topic=topic) == [{"partition": 0, "offset": "2", "high": "2", "low": "0"}]
    assert kafkajs("topicOffsetsByTime", topic=topic, time=0) == [{"partition": 0, "offset": "0"}]


def test_partitions_are_added(ask, topic):
    ask("createPartitions", topic=topic, partitions=3)
    assert ask("partitions", topic=topic) == 3


def test_records_are_deleted(ask, topic):
    ask("produce", topic=topic, values=["one", "two", "three"])
    ask("deleteRecords", topic=topic, before=2)
    assert [record[3] for record in ask("read", topic=topic, group=f"left-{topic}", count=1)] == ["three"]


def test_the_settings_of_a_topic_are_read_and_changed(ask, topic):
    assert ask("topicConfig", topic=topic)["segment.ms"] == "604800000"
    ask("setTopicConfig", topic=topic, name="segment.ms", value="3600000")
    assert ask("topicConfig", topic=topic)["segment.ms"] == "3600000"


def test_what_platformatic_asks_of_the_node(platformatic):
    topic = f"node-{next(_numbers)}"
    platformatic("createTopic", topic=topic)
    platformatic("produce", topic=topic, values=["one"])
    assert platformatic("logDirs", topic=topic) == [topic]
    assert platformatic("quotas") == []


def test_without_an_authorizer_there_are_no_acls(kafkajs):
    with pytest.raises(ClientError) as caught:
        kafkajs("describeAcls")
    assert caught.value.name == "SECURITY_DISABLED"


def test_a_transaction_is_seen_as_a_whole_or_not_at_all(ask, topic):
    name = f"id-{topic}"
    ask("transaction", id=name, topic=topic, values=["a", "b"])
    ask("transaction", id=f"{name}-2", topic=topic, values=["never"], abort=True)
    ask("transaction", id=f"{name}-3", topic=topic, values=["c"])
    records = ask("read", topic=topic, group=f"committed-{topic}", count=3, committed=True)
    assert [value for _, _, _, value, _ in records] == ["a", "b", "c"]
    records = ask("read", topic=topic, group=f"all-{topic}", count=4)
    assert [value for _, _, _, value, _ in records] == ["a", "b", "never", "c"]


def test_kafkajs_commits_offsets_with_its_transaction(kafkajs):
    topic = f"node-{next(_numbers)}"
    kafkajs("createTopic", topic=topic)
    group = f"group-{topic}"
    kafkajs("transaction", id=f"id-{topic}", topic=topic, values=["a"], group=group, offset=5)
    assert kafkajs("groupOffset", group=group, topic=topic) == 5
    kafkajs("transaction", id=f"id-{topic}", topic=topic, values=["b"], group=group, offset=9, abort=True)
    assert kafkajs("groupOffset", group=group, topic=topic) == 5
