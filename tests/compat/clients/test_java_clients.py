"""Apache Kafka's Java producer, consumer and admin client, unchanged, against a real server.

The protocol is written for these clients (https://kafka.apache.org/protocol), and they fail where others are lenient.
Every test here has also passed against Apache Kafka 4.3.1, one node without an authorizer, except for the test that
states where Flakelog differs.
"""

from itertools import count

import pytest

from tests.compat.cluster_servers import one_or_three
from tests.compat.stock_java import need_java
from tests.compat.stock_process import ClientError

SETTINGS = {"group.initial.rebalance.delay.ms": 0}
VALUES = [f"value {n} " * 20 for n in range(100)]

_numbers = count()

need_java()


@pytest.fixture(scope="module")
def server(java, tmp_path_factory):
    with one_or_three(tmp_path_factory.mktemp("java"), SETTINGS) as server:
        yield server


@pytest.fixture
def ask(java, server):
    """Return ask("produce", topic=..., ...), which returns the Java client's answer or raises ClientError."""

    def ask_server(call, /, **arguments):
        return java.ask(call, address=server.address, **arguments)

    return ask_server


@pytest.fixture
def topic(ask):
    return make_topic(ask)


def make_topic(ask, partitions=1, **configs):
    name = f"java-{next(_numbers)}"
    ask("createTopic", topic=name, partitions=partitions, configs=configs)
    return name


def values(records):
    return [record["value"] for record in records]


def refusal(ask, call, /, **arguments):
    """Return the name of the exception that the client throws."""
    with pytest.raises(ClientError) as caught:
        ask(call, **arguments)
    return caught.value.name


# --- producer and consumer -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_the_producer_compresses_the_consumer_reads(ask, topic, codec):
    sent = ask("produce", topic=topic, values=VALUES, config={"compression.type": codec, "linger.ms": 20})
    assert sent == [[0, offset] for offset in range(len(VALUES))]
    records = ask("read", topic=topic, count=len(VALUES))
    assert values(records) == VALUES
    assert [(r["offset"], r["key"], r["headers"]) for r in records] == [
        (n, f"key-{n}", {"number": str(n)}) for n in range(len(VALUES))
    ]


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_kind_of_acknowledgement(ask, topic, acks):
    config = {"acks": acks, "enable.idempotence": str(acks == "all").lower()}
    ask("produce", topic=topic, values=VALUES, config=config)
    assert values(ask("read", topic=topic, count=len(VALUES))) == VALUES


def test_a_topic_nobody_created_is_made_by_the_first_message(ask):
    name = f"java-auto-{next(_numbers)}"
    assert ask("produce", topic=name, values=["first"]) == [[0, 0]]
    assert name in ask("listTopics")


def test_a_message_too_large_is_refused_and_the_next_one_is_taken(ask, topic):
    too_large = {"max.request.size": 3_000_000, "compression.type": "none"}
    assert refusal(ask, "produce", topic=topic, values=["x" * 2_000_000], config=too_large) == "RecordTooLargeException"
    assert ask("produce", topic=topic, values=["small"]) == [[0, 0]]


def test_the_consumer_seeks_by_time(ask, topic):
    for time in (1_000_000, 2_000_000, 3_000_000):
        ask("produce", topic=topic, values=[f"at {time}"], timestamp=time)
    assert values(ask("read", topic=topic, time=1_500_000, count=2)) == ["at 2000000", "at 3000000"]
    assert ask("ends", topic=topic, time=3_000_000) == {"begin": 0, "end": 3, "by_time": 2}
    assert ask("ends", topic=topic, time=3_000_001) == {"begin": 0, "end": 3, "by_time": None}


def test_an_offset_out_of_range_is_said_so(ask, topic):
    ask("produce", topic=topic, values=["one"])
    config = {"auto.offset.reset": "none"}
    name = refusal(ask, "read", topic=topic, offset=17, count=1, config=config)
    assert name == "OffsetOutOfRangeException"


# --- groups ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "assignor", ["RangeAssignor", "RoundRobinAssignor", "StickyAssignor", "CooperativeStickyAssignor"]
)
def test_members_share_a_topic_and_take_over_from_each_other(ask, assignor):
    topic = make_topic(ask, 4)
    group = f"group-{topic}"
    config = {
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": "false",
        "heartbeat.interval.ms": "100",
        "partition.assignment.strategy": f"org.apache.kafka.clients.consumer.{assignor}",
    }
    first, second = f"{assignor}-1", f"{assignor}-2"
    ask("join", name=first, topic=topic, config=config)
    assert ask("share", names=[first], partitions=4) == {first: [0, 1, 2, 3]}
    ask("join", name=second, topic=topic, config=config)
    shares = ask("share", names=[first, second], partitions=4)
    assert sorted(shares[first] + shares[second]) == [0, 1, 2, 3]
    for partition in range(4):
        ask("produce", topic=topic, partition=partition, values=[f"for {partition}"])
    taken = ask("take", names=[first, second], count=4)
    assert sorted(values(taken)) == [f"for {n}" for n in range(4)]
    ask("leave", name=first)
    assert ask("share", names=[second], partitions=4) == {second: [0, 1, 2, 3]}
    assert ask("groupOffsets", group=group) == {f"{topic}-{n}": 1 for n in range(4)}
    ask("leave", name=second)


def test_the_admin_client_sees_moves_and_deletes_groups(ask, topic):
    config = {"group.id": "seen", "auto.offset.reset": "earliest", "client.id": "looked-at"}
    ask("produce", topic=topic, values=["a", "b", "c"])
    ask("join", name="seen-1", topic=topic, config=config)
    ask("take", names=["seen-1"], count=3)
    assert ask("listGroups")["seen"] == ["Classic", "consumer", "Stable"]
    described = ask("describeGroup", group="seen")
    assert (described["state"], described["assignor"]) == ("Stable", "range")
    assert described["members"] == [{"client": "looked-at", "host": "/127.0.0.1", "partitions": [0]}]
    assert refusal(ask, "deleteGroup", group="seen") == "GroupNotEmptyException"
    ask("leave", name="seen-1")
    assert ask("describeGroup", group="seen")["state"] == "Empty"
    ask("alterGroupOffset", group="seen", topic=topic, offset=1)
    assert ask("groupOffsets", group="seen") == {f"{topic}-0": 1}
    ask("deleteGroup", group="seen")
    assert "seen" not in ask("listGroups")
    assert ask("groupOffsets", group="seen") == {}


def test_a_group_nobody_knows(ask):
    assert refusal(ask, "describeGroup", group="unheard-of") == "GroupIdNotFoundException"
    assert refusal(ask, "deleteGroup", group="unheard-of") == "GroupIdNotFoundException"


def test_a_groups_offset_is_deleted(ask, topic):
    group = f"group-{topic}"
    ask("produce", topic=topic, values=["one"])
    ask("join", name="once", topic=topic, config={"group.id": group, "auto.offset.reset": "earliest"})
    ask("take", names=["once"], count=1)
    assert refusal(ask, "deleteGroupOffset", group=group, topic=topic) == "GroupSubscribedToTopicException"
    ask("leave", name="once")
    ask("deleteGroupOffset", group=group, topic=topic)
    assert ask("groupOffsets", group=group) == {}


# --- topics and the cluster ------------------------------------------------------------------------------------------


def test_the_cluster_has_one_node_which_is_its_controller(ask, server):
    cluster = ask("describeCluster")
    (node,) = cluster["nodes"]
    assert node["address"] == server.address
    assert cluster["controller"] == node["id"]
    assert len(cluster["cluster"]) == 22


def test_topics_are_made_described_and_deleted(ask):
    topic = make_topic(ask, 3)
    described = ask("describeTopic", topic=topic)
    node = ask("describeCluster")["nodes"][0]["id"]
    assert not described["internal"] and len(described["id"]) == 22
    assert described["partitions"] == [
        {"partition": n, "leader": node, "replicas": [node], "isr": [node]} for n in range(3)
    ]
    assert refusal(ask, "createTopic", topic=topic) == "TopicExistsException"
    assert refusal(ask, "createTopic", topic="no/slash") == "InvalidTopicException"
    assert refusal(ask, "createTopic", topic="none", partitions=0) == "InvalidPartitionsException"
    ask("createTopic", topic="only-asked", validate=True)
    assert "only-asked" not in ask("listTopics")
    ask("deleteTopics", topics=[topic])
    assert topic not in ask("listTopics")
    assert refusal(ask, "describeTopic", topic=topic) == "UnknownTopicOrPartitionException"


def test_offsets_by_kind(ask, topic):
    for time in (1_000_000, 3_000_000, 2_000_000):
        ask("produce", topic=topic, values=[f"at {time}"], timestamp=time)
    offsets = ask("listOffsets", topic=topic, time=1_000_001)
    assert offsets == {"earliest": 0, "latest": 3, "max_timestamp": 1, "time": 1}


def test_records_are_deleted_up_to_an_offset(ask, topic):
    ask("produce", topic=topic, values=["one", "two", "three"])
    assert ask("deleteRecords", topic=topic, before=2) == 2
    assert ask("ends", topic=topic) == {"begin": 2, "end": 3, "by_time": 2}
    assert values(ask("read", topic=topic, count=1)) == ["three"]
    assert ask("deleteRecords", topic=topic, before=-1) == 3
    assert refusal(ask, "deleteRecords", topic=topic, before=4) == "OffsetOutOfRangeException"


def test_partitions_are_added_and_the_consumers_of_a_group_get_them(ask, topic):
    config = {"group.id": f"group-{topic}", "metadata.max.age.ms": "200", "auto.offset.reset": "earliest"}
    ask("join", name="grows", topic=topic, config=config)
    assert ask("share", names=["grows"], partitions=1) == {"grows": [0]}
    ask("createPartitions", topic=topic, partitions=3)
    assert len(ask("describeTopic", topic=topic)["partitions"]) == 3
    assert ask("share", names=["grows"], partitions=3) == {"grows": [0, 1, 2]}
    ask("produce", topic=topic, partition=2, values=["in the new one"])
    assert values(ask("take", names=["grows"], count=1)) == ["in the new one"]
    ask("leave", name="grows")
    assert refusal(ask, "createPartitions", topic=topic, partitions=2) == "InvalidPartitionsException"


# --- settings --------------------------------------------------------------------------------------------------------


def test_a_created_topic_answers_with_its_configs(ask):
    name = f"java-{next(_numbers)}"
    created = ask("createTopic", topic=name, partitions=2, configs={"retention.ms": "3600000"})
    assert (created["partitions"], created["replication"]) == (2, 1)
    assert created["configs"]["retention.ms"]["value"] == "3600000"
    assert created["configs"]["retention.ms"]["source"] == "DYNAMIC_TOPIC_CONFIG"
    assert created["configs"]["cleanup.policy"]["source"] == "DEFAULT_CONFIG"
    assert refusal(ask, "createTopic", topic="unknown", configs={"no.such": "1"}) == "InvalidConfigurationException"
    assert refusal(ask, "createTopic", topic="bad", configs={"retention.ms": "x"}) == "InvalidConfigurationException"


def test_a_topics_configs_are_described_and_altered(ask, topic):
    def described():
        return ask("describeConfigs", type="TOPIC", name=topic)

    def alter(*changes):
        ask("alterConfigs", type="TOPIC", name=topic, changes=changes)

    default = described()["segment.ms"]
    assert default["source"] == "DEFAULT_CONFIG" and not default["readOnly"]
    assert default["type"] == "LONG" and default["documented"]
    alter(["SET", "segment.ms", "1000000"], ["SET", "cleanup.policy", "delete"])
    alter(["APPEND", "cleanup.policy", "compact"])
    changed = described()
    assert changed["segment.ms"]["value"] == "1000000"
    assert changed["segment.ms"]["synonyms"][0] == "DYNAMIC_TOPIC_CONFIG"
    assert changed["cleanup.policy"]["value"] == "delete,compact"
    alter(["SUBTRACT", "cleanup.policy", "delete"], ["DELETE", "segment.ms", None])
    changed = described()
    assert changed["cleanup.policy"]["value"] == "compact"
    assert changed["segment.ms"] == default
    arguments = {"type": "TOPIC", "name": topic, "changes": [["SET", "max.message.bytes", "-7"]]}
    assert refusal(ask, "alterConfigs", **arguments) == "InvalidConfigurationException"
    assert refusal(ask, "describeConfigs", type="TOPIC", name="unheard-of") == "UnknownTopicOrPartitionException"


def test_a_brokers_configs_are_described_and_altered(ask, server):
    node = str(ask("describeCluster")["controller"])
    described = ask("describeConfigs", type="BROKER", name=node)
    assert described["group.initial.rebalance.delay.ms"]["value"] == "0"
    assert described["group.initial.rebalance.delay.ms"]["source"] == "STATIC_BROKER_CONFIG"
    assert described["node.id"]["readOnly"]
    before = described["log.retention.ms"]["value"]
    ask("alterConfigs", type="BROKER", name="", changes=[["SET", "log.retention.ms", "7200000"]])
    changed = ask("describeConfigs", type="BROKER", name=node)["log.retention.ms"]
    assert (changed["value"], changed["source"]) == ("7200000", "DYNAMIC_DEFAULT_BROKER_CONFIG")
    ask("alterConfigs", type="BROKER", name="", changes=[["DELETE", "log.retention.ms", None]])
    assert ask("describeConfigs", type="BROKER", name=node)["log.retention.ms"]["value"] == before
    read_only = {"type": "BROKER", "name": node, "changes": [["SET", "node.id", "7"]]}
    assert refusal(ask, "alterConfigs", **read_only) == "InvalidRequestException"


# --- the rest of administration --------------------------------------------------------------------------------------


def test_the_features_do_not_promise_the_second_version_of_transactions(ask):
    """Unlike Kafka, Flakelog does not promise transaction.version 2 (KIP-890), because it does not serve that version.

    A client that reads 2 would leave out AddPartitionsToTxn.
    """
    assert ask("describeFeatures")["finalized"].get("transaction.version", 0) < 2


def test_log_directories_are_described(ask, topic):
    ask("produce", topic=topic, values=["one"])
    (directory,) = ask("describeLogDirs", node=ask("describeCluster")["controller"]).values()
    assert directory[f"{topic}-0"] > 60


def test_what_only_a_cluster_has_is_answered_as_by_one_node(ask, topic):
    assert ask("listReassignments") == 0
    assert ask("electLeaders", topic=topic) == "ElectionNotNeededException"
    assert ask("describeQuotas") == 0
    assert ask("describeScram") == 0
    assert refusal(ask, "describeAcls") == "SecurityDisabledException"


def test_config_resources_are_listed(ask, topic):
    resources = ask("listConfigResources")
    assert f"TOPIC {topic}" in resources
    assert f"BROKER {ask('describeCluster')['controller']}" in resources


def test_without_an_authorizer_everybody_may_do_everything(ask, topic):
    """All operations are authorized; user interfaces ask for them (KIP-430) and grey out missing ones."""
    ask("alterGroupOffset", group=f"group-{topic}", topic=topic, offset=0)
    assert ask("authorizedOperations", topic=topic, group=f"group-{topic}") == {
        "topic": ["ALTER", "ALTER_CONFIGS", "CREATE", "DELETE", "DESCRIBE", "DESCRIBE_CONFIGS", "READ", "WRITE"],
        "group": ["ALTER_CONFIGS", "DELETE", "DESCRIBE", "DESCRIBE_CONFIGS", "READ"],
        "cluster": [
            "ALTER", "ALTER_CONFIGS", "CLUSTER_ACTION", "CREATE", "DESCRIBE", "DESCRIBE_CONFIGS", "IDEMPOTENT_WRITE",
        ],
    }  # fmt: skip


# --- transactions ----------------------------------------------------------------------------------------------------


def test_a_transaction_is_seen_as_a_whole_or_not_at_all(ask, topic):
    committed = {"isolation.level": "read_committed"}
    transactional = {"transactional.id": f"id-{topic}"}
    ask("transaction", topic=topic, values=["a", "b"], config=transactional)
    ask("transaction", topic=topic, values=["never"], commit=False, config=transactional)
    ask("transaction", topic=topic, values=["c"], config=transactional)
    assert values(ask("read", topic=topic, count=3, config=committed)) == ["a", "b", "c"]
    assert values(ask("read", topic=topic, count=4)) == ["a", "b", "never", "c"]


def test_offsets_are_committed_with_their_transaction(ask, topic):
    group, transactional = f"group-{topic}", {"transactional.id": f"id-{topic}"}
    offsets = [{"topic": topic, "offset": 5}]
    ask("transaction", topic=topic, values=["a"], config=transactional, group=group, offsets=offsets)
    assert ask("groupOffsets", group=group) == {f"{topic}-0": 5}
    offsets = [{"topic": topic, "offset": 9}]
    ask("transaction", topic=topic, values=["b"], config=transactional, group=group, offsets=offsets, commit=False)
    assert ask("groupOffsets", group=group) == {f"{topic}-0": 5}


def test_a_second_producer_of_the_same_id_fences_the_first(ask, topic):
    config = {"transactional.id": f"id-{topic}"}
    fenced = ask("fencedTransaction", topic=topic, values=["a"], config=config)
    assert fenced in ("ProducerFencedException", "InvalidProducerEpochException")
    assert ask("ends", topic=topic, config={"isolation.level": "read_committed"})["end"] == 2


def test_an_open_transaction_is_listed_described_and_fenced_by_an_admin(ask, topic):
    name = f"id-{topic}"
    ask("leaveTransactionOpen", topic=topic, values=["a"], config={"transactional.id": name})
    assert ask("listTransactions")[name] == "Ongoing"
    described = ask("describeTransaction", id=name)
    assert (described["state"], described["partitions"]) == ("Ongoing", [f"{topic}-0"])
    assert described["timeout_ms"] == 60_000
    assert ask("describeProducers", topic=topic) == {"known": 1, "in_transaction": 1}
    assert ask("ends", topic=topic, config={"isolation.level": "read_committed"})["end"] == 0
    ask("fenceProducers", id=name)
    assert ask("describeTransaction", id=name)["state"] in ("CompleteAbort", "Empty")
    assert ask("describeProducers", topic=topic)["in_transaction"] == 0
    assert refusal(ask, "describeTransaction", id="unheard-of") == "TransactionalIdNotFoundException"
