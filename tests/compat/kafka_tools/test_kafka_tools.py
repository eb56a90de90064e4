"""Apache Kafka's command-line tools (bin/kafka-*.sh, by their classes), unchanged, against a real server.

Every test here has also passed against Apache Kafka 4.3.1, one node without an authorizer. The tests check stderr too,
because an operator sees a tool's warnings there first.
"""

import json
import re
from itertools import count, pairwise

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from broker.client.blocking import Client
from broker.client.core import LATEST
from broker.log.producer_state import BATCHES_KEPT
from tests.compat.cluster_servers import one_or_three
from tests.compat.server_process import ServerProcess
from tests.compat.stock_java import need_java
from tests.patience import MS, SECONDS, until

SETTINGS = {"group.initial.rebalance.delay.ms": 0}
TOOLS = "org.apache.kafka.tools"

ADDRESS_LAST = {"ClusterTool"}  # its subcommand takes the address

_numbers = count()

need_java()


@pytest.fixture(scope="module")
def server(java, tmp_path_factory):
    with one_or_three(tmp_path_factory.mktemp("tools"), SETTINGS) as server:
        yield server


@pytest.fixture
def run(java, server):
    """Return run("TopicCommand", "--list"), which returns stdout; the tool must succeed, and print `stderr` there."""

    def ran(tool, *arguments, stdin="", stderr=""):
        main = tool if tool.startswith("kafka.") else f"{TOOLS}.{tool}"
        address = ("--bootstrap-server", server.address)
        arguments = (*arguments, *address) if tool in ADDRESS_LAST else (*address, *arguments)
        done = java.tool(main, *arguments, stdin=stdin)
        assert done.exit == 0 and re.fullmatch(stderr, done.stderr), done
        return done.stdout

    return ran


@pytest.fixture
def consume(run, topic):
    """Return consume(3, "--group", "g"), which returns the console consumer's output from the topic's beginning."""

    def consumed(number, *arguments):
        options = ("--topic", topic, "--from-beginning", "--max-messages", number, *arguments)
        stderr = f"(The consumer rebalance protocol .*\n)?Processed a total of {number} messages\n"
        return run("consumer.ConsoleConsumer", *options, stderr=stderr)

    return consumed


@pytest.fixture
def topic(java, server):
    name = f"tools-{next(_numbers)}"
    java.ask("createTopic", address=server.address, topic=name, partitions=2)
    return name


# --- producing and consuming -----------------------------------------------------------------------------------------


def test_the_console_consumer_prints_what_the_console_producer_was_told(run, topic, consume):
    keyed = ("--reader-property", "parse.key=true", "--compression-codec", "gzip")
    run("ConsoleProducer", "--topic", topic, *keyed, stdin="a\tone\nb\ttwo\nc\tthree\n")
    lines = consume(3, "--formatter-property", "print.key=true").splitlines()
    assert sorted(lines) == ["a\tone", "b\ttwo", "c\tthree"]


def test_what_the_verifiable_producer_sends_the_verifiable_consumer_finds(java, run, server, topic):
    options = ("--bootstrap-server", server.address, "--topic", topic, "--max-messages", 500, "--acks", -1)
    produced = java.process(f"{TOOLS}.VerifiableProducer", *options)
    assert (produced.exit, produced.stderr) == (0, "")
    sent = fields(produced.stdout, "producer_send_success")
    assert len(sent) == 500
    group = ("--group-id", f"verify-{topic}", "--reset-policy", "earliest", "--verbose")
    consumed = run("VerifiableConsumer", "--topic", topic, "--max-messages", 500, *group)
    assert sorted(fields(consumed, "record_data")) == sorted(sent)


def fields(text, name):
    """Return [(partition, offset, value), ...] of the lines with this name."""
    lines = [json.loads(line) for line in text.splitlines()]
    return [(line["partition"], line["offset"], line["value"]) for line in lines if line["name"] == name]


def test_the_performance_tools_send_and_read_all(run, topic):
    load = ("--topic", topic, "--num-records", 20_000, "--record-size", 100, "--throughput", -1)
    sent = run("ProducerPerformance", *load)
    assert sent.splitlines()[-1].startswith("20000 records sent")
    options = ("--num-records", 20_000, "--hide-header", "--timeout", MS)
    read = run("ConsumerPerformance", "--topic", topic, *options)
    assert read.split(", ")[4] == "20000"


# --- topics, groups, offsets -----------------------------------------------------------------------------------------


def test_get_offsets_of_a_topic_by_kind_and_time(run, topic):
    run("ConsoleProducer", "--topic", topic, stdin="one\ntwo\nthree\n")
    command = ("GetOffsetShell", "--topic", topic)

    def total(*arguments):
        rows = [line.split(":") for line in run(*command, *arguments).splitlines()]
        assert {row[0] for row in rows} == {topic}
        return sum(int(row[2]) for row in rows)

    assert total() == 3
    assert total("--time", "earliest") == 0
    assert total("--time", "0") == 0
    assert total("--partitions", "0,1") == 3


def test_consumer_groups_are_listed_described_reset_and_deleted(run, topic, consume):
    group = f"group-{topic}"
    run("ConsoleProducer", "--topic", topic, stdin="one\ntwo\nthree\n")
    consume(3, "--group", group)
    groups = "consumer.group.ConsumerGroupCommand"
    assert group in run(groups, "--list").split()
    (state,) = [row["STATE"] for row in rows_of(run(groups, "--list", "--state")) if row["GROUP"] == group]
    assert state == "Empty"
    describe = (groups, "--describe", "--group", group)
    nobody = f"\nConsumer group '{group}' has no active members.\n"
    rows = rows_of(run(*describe, stderr=nobody))
    assert sum(int(row["CURRENT-OFFSET"]) for row in rows) == 3
    assert all(row["LAG"] == "0" for row in rows)
    run(groups, "--reset-offsets", "--group", group, "--topic", topic, "--to-earliest", "--execute")
    rows = rows_of(run(*describe, stderr=nobody))
    assert sum(int(row["LAG"]) for row in rows) == 3
    assert "was successful" in run(groups, "--delete", "--group", group)
    assert group not in run(groups, "--list").split()


def rows_of(table):
    """Return the rows of a tool's table as dicts, with the words of its heading as keys."""
    heading, *rows = [line.split() for line in table.splitlines() if line.strip()]
    return [dict(zip(heading, row)) for row in rows]


def test_topics_are_made_listed_described_altered_and_deleted(run):
    topic = f"tools-{next(_numbers)}"
    made = run("TopicCommand", "--create", "--topic", topic, "--partitions", 3, "--config", "retention.ms=3600000")
    assert made == f"Created topic {topic}.\n"
    assert topic in run("TopicCommand", "--list").split()
    head, *partitions = run("TopicCommand", "--describe", "--topic", topic).splitlines()
    assert "PartitionCount: 3\tReplicationFactor: 1" in head and "retention.ms=3600000" in head
    assert len(partitions) == 3 and all("Leader: 1" in partition and "Isr: 1" in partition for partition in partitions)
    run("TopicCommand", "--alter", "--topic", topic, "--partitions", 5)
    assert len(run("TopicCommand", "--describe", "--topic", topic).splitlines()) == 6
    assert run("TopicCommand", "--describe", "--unavailable-partitions") == ""
    run("TopicCommand", "--delete", "--topic", topic)
    assert topic not in run("TopicCommand", "--list").split()


def test_records_are_deleted_as_a_file_says(run, topic, tmp_path):
    run("ConsoleProducer", "--topic", topic, "--reader-property", "parse.key=true", stdin="a\tone\na\ttwo\na\tthree\n")
    (row,) = [line.split(":") for line in run("GetOffsetShell", "--topic", topic).splitlines() if line.endswith(":3")]
    file = tmp_path / "delete.json"
    file.write_text(json.dumps({"partitions": [{"topic": topic, "partition": int(row[1]), "offset": 2}], "version": 1}))
    assert "low_watermark: 2" in run("DeleteRecordsCommand", "--offset-json-file", file)
    assert f"{topic}:{row[1]}:2" in run("GetOffsetShell", "--topic", topic, "--time", "earliest").split()


def test_groups_of_every_kind_are_listed(run, topic, consume):
    run("ConsoleProducer", "--topic", topic, stdin="one\n")
    consume(1, "--group", f"group-{topic}")
    (row,) = [row for row in rows_of(run("GroupsCommand", "--list")) if row["GROUP"] == f"group-{topic}"]
    assert (row["TYPE"], row["PROTOCOL"]) == ("Classic", "consumer")


def test_a_groups_members_and_their_state_are_described(run, java, server, topic):
    config = {"group.id": f"group-{topic}", "client.id": "looked-at"}
    java.ask("join", address=server.address, name=topic, topic=topic, config=config)
    java.ask("share", names=[topic], partitions=2)
    groups = ("consumer.group.ConsumerGroupCommand", "--describe", "--group", f"group-{topic}")
    (member,) = rows_of(run(*groups, "--members", "--verbose"))
    assert (member["CLIENT-ID"], member["#PARTITIONS"]) == ("looked-at", "2")
    (state,) = rows_of(run(*groups, "--state").replace("COORDINATOR (ID)", "COORDINATOR ID"))
    assert (state["ASSIGNMENT-STRATEGY"], state["STATE"], state["#MEMBERS"]) == ("range", "Stable", "1")
    java.ask("leave", name=topic)


# --- the cluster -----------------------------------------------------------------------------------------------------


def test_the_versions_of_each_api_are_read(run, server):
    printed = run("BrokerApiVersionsCommand")
    assert server.address in printed.splitlines()[0]
    assert "Produce(0): 0 to 13 [usable: 13]" in printed


def test_the_cluster_tells_its_id(run):
    assert run("ClusterTool", "cluster-id").startswith("Cluster ID: ")


def test_log_directories_are_described(run, topic):
    run("ConsoleProducer", "--topic", topic, stdin="one\n")
    *_, line = run("LogDirsCommand", "--describe", "--topic-list", topic).splitlines()
    (broker,) = json.loads(line)["brokers"]
    (directory,) = broker["logDirs"]
    assert directory["error"] is None
    assert sorted(replica["partition"] for replica in directory["partitions"]) == [f"{topic}-0", f"{topic}-1"]


def test_without_an_authorizer_there_are_no_acls(java, server):
    done = java.tool(f"{TOOLS}.AclCommand", "--list", "--bootstrap-server", server.address)
    assert done.exit == 1 and "SecurityDisabledException" in done.stdout + done.stderr


def test_leaders_are_elected_already_and_nothing_is_reassigned(run, topic):
    stdout = run("LeaderElectionCommand", "--election-type", "preferred", "--topic", topic, "--partition", 0)
    assert f"Valid replica already elected for partitions {topic}-0" in stdout
    assert "No partition reassignments found" in run("reassign.ReassignPartitionsCommand", "--list")


def test_a_log_is_assigned_to_the_directory_it_is_in(run, topic, tmp_path):
    *_, line = run("LogDirsCommand", "--describe", "--topic-list", topic).splitlines()
    directory = json.loads(line)["brokers"][0]["logDirs"][0]["logDir"]
    plan = {"version": 1, "partitions": [{"topic": topic, "partition": 0, "replicas": [1], "log_dirs": [directory]}]}
    (tmp_path / "plan").write_text(json.dumps(plan))
    command = ("reassign.ReassignPartitionsCommand", "--reassignment-json-file", tmp_path / "plan")
    assert f"Successfully started moving log directory to {directory}" in run(*command, "--execute")
    verified = run(*command, "--verify")
    assert f"Reassignment of partition {topic}-0 is completed" in verified
    assert f"Reassignment of replica {topic}-0-1 completed successfully" in verified


def test_the_quorum_is_this_node(run):
    status = run("MetadataQuorumCommand", "describe", "--status")
    assert "LeaderId:               1\n" in status and "MaxFollowerLag:         0\n" in status
    (replica,) = rows_of(run("MetadataQuorumCommand", "describe", "--replication"))
    assert (replica["NodeId"], replica["Lag"], replica["Status"]) == ("1", "0", "Leader")


def test_the_features_are_described(run):
    printed = run("FeatureCommand", "describe")
    assert "Feature: metadata.version" in printed


# --- settings --------------------------------------------------------------------------------------------------------


def test_the_settings_of_a_topic_are_altered_and_described(run, topic):
    entity = ("--entity-type", "topics", "--entity-name", topic)

    def described(*arguments):
        return run("kafka.admin.ConfigCommand", "--describe", *entity, *arguments)

    changes = "retention.ms=3600000,cleanup.policy=[compact,delete]"
    run("kafka.admin.ConfigCommand", "--alter", *entity, "--add-config", changes)
    own = described()
    assert "retention.ms=3600000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=3600000" in own
    assert "cleanup.policy=compact,delete" in own
    run("kafka.admin.ConfigCommand", "--alter", *entity, "--delete-config", "retention.ms")
    assert "retention.ms" not in described()
    assert "segment.bytes=1073741824" in described("--all")


def test_the_settings_of_brokers_are_described_and_altered(run):
    entity = ("--entity-type", "brokers")
    assert "group.initial.rebalance.delay.ms=0" in run(
        "kafka.admin.ConfigCommand", "--describe", *entity, "--entity-name", 1, "--all"
    )
    run("kafka.admin.ConfigCommand", "--alter", *entity, "--entity-default", "--add-config", "log.retention.ms=7200000")
    default = run("kafka.admin.ConfigCommand", "--describe", *entity, "--entity-default")
    assert "log.retention.ms=7200000 sensitive=false synonyms={DYNAMIC_DEFAULT_BROKER_CONFIG" in default
    run("kafka.admin.ConfigCommand", "--alter", *entity, "--entity-default", "--delete-config", "log.retention.ms")


def test_a_quota_of_a_client_is_set_and_described(run):
    entity = ("--entity-type", "clients", "--entity-name", "reports")
    run("kafka.admin.ConfigCommand", "--alter", *entity, "--add-config", "producer_byte_rate=1024")
    described = run("kafka.admin.ConfigCommand", "--describe", *entity)
    assert "Quota configs for client-id 'reports' are producer_byte_rate=1024.0" in described
    run("kafka.admin.ConfigCommand", "--alter", *entity, "--delete-config", "producer_byte_rate")
    assert run("kafka.admin.ConfigCommand", "--describe", *entity) == ""


@pytest.mark.parametrize("kind", ["clients", "users"])
def test_of_clients_and_users_there_is_nothing_to_describe(run, kind):
    assert run("kafka.admin.ConfigCommand", "--describe", "--entity-type", kind) == ""


# --- transactions ----------------------------------------------------------------------------------------------------


def test_transactions_are_listed_and_described_and_a_hanging_one_looked_for(run, java, server, topic):
    name = f"id-{topic}"
    java.ask(
        "leaveTransactionOpen", address=server.address, topic=topic, partition=0, values=["a"],
        config={"transactional.id": name},
    )  # fmt: skip
    (row,) = [row for row in rows_of(run("TransactionsCommand", "list")) if row["TransactionalId"] == name]
    assert row["TransactionState"] == "Ongoing"
    pattern = ("list", "--transactional-id-pattern")
    (row,) = rows_of(run("TransactionsCommand", *pattern, f"(?i)ID-{topic}"))
    assert row["TransactionalId"] == name
    assert rows_of(run("TransactionsCommand", *pattern, topic)) == []
    (described,) = rows_of(run("TransactionsCommand", "describe", "--transactional-id", name))
    assert (described["TransactionState"], described["TopicPartitions"]) == ("Ongoing", f"{topic}-0")
    (producer,) = rows_of(run("TransactionsCommand", "describe-producers", "--topic", topic, "--partition", 0))
    assert producer["CurrentTransactionStartOffset"] == "0"
    assert rows_of(run("TransactionsCommand", "find-hanging", "--broker-id", 1)) == []
    abort = ("abort", "--topic", topic, "--partition", 0, "--start-offset", 0)
    run("TransactionsCommand", *abort)
    (row,) = rows_of(run("TransactionsCommand", "describe-producers", "--topic", topic, "--partition", 0))
    assert row["CurrentTransactionStartOffset"] == "None"
    run("TransactionsCommand", "forceTerminateTransaction", "--transactionalId", name)
    (row,) = rows_of(run("TransactionsCommand", "describe-producers", "--topic", topic, "--partition", 0))
    assert row["CurrentTransactionStartOffset"] == "None"


# --- the files -------------------------------------------------------------------------------------------------------

SMALL_SEGMENTS = SETTINGS | {"log.segment.bytes": 65_536, "log.index.interval.bytes": 4_096}
MESSAGES = 2_000


@pytest.fixture(scope="module")
def files(java, tmp_path_factory):
    """Yield the directory of a stopped server with many segments of an idempotent producer and a group's offsets."""
    with ServerProcess(tmp_path_factory.mktemp("dumped") / "data", SMALL_SEGMENTS) as server:
        values = [f"value {n} ".ljust(200, ".") for n in range(MESSAGES)]
        config = {"compression.type": "none", "batch.size": 4_000}
        java.ask("produce", address=server.address, topic="dumped", values=values, config=config)
        group = {"group.id": "read", "auto.offset.reset": "earliest"}
        java.ask("join", address=server.address, name="member", topic="dumped", config=group)
        java.ask("take", names=["member"], count=MESSAGES)
        java.ask("leave", name="member")
        assert server.stop() == 0
        yield server.data_dir


@pytest.fixture
def dump(java):
    """Return dump(paths, "--deep-iteration"), which returns the dump tool's output for these files."""

    def dumped(paths, *arguments, stderr=""):
        assert paths, "there is no such file"
        done = java.tool(f"{TOOLS}.DumpLogSegments", "--files", ",".join(map(str, paths)), *arguments)
        assert done.exit == 0 and re.fullmatch(stderr, done.stderr), done
        return done.stdout

    return dumped


def test_every_segment_is_dumped_record_by_record(files, dump):
    """Every record is dumped. The tool of 4.3 reports a gap after offset -1 for every segment except the first.

    It does so for Kafka's own files too.
    """
    logs = sorted((files / "dumped-0").glob("*.log"))
    assert len(logs) > 3
    gap = r"Non-consecutive offsets in .*/\d+\.log\n  -1 is followed by \d+\n"
    printed = dump(logs, "--deep-iteration", "--print-data-log", stderr=f"({gap}){{{len(logs) - 1}}}")
    assert re.findall(r"\| offset: (\d+)", printed) == [str(n) for n in range(MESSAGES)]
    assert "isvalid: false" not in printed


@pytest.mark.parametrize("kind", ["index", "timeindex"])
def test_an_index_agrees_with_its_segment(files, dump, kind):
    """The tool looks up each index entry in the segment and finds no mismatch, which it would write to stdout."""
    printed = dump(sorted((files / "dumped-0").glob(f"*.{kind}")))
    assert len(re.findall(r"^(?:offset|timestamp): ", printed, re.MULTILINE)) > 3 * 3
    assert not re.search("mismatch|found|not indexed|out of order", printed, re.IGNORECASE), printed


def test_an_index_passes_the_sanity_check(files, dump):
    printed = dump(sorted((files / "dumped-0").glob("*.index")), "--index-sanity-check")
    assert "passed sanity check" in printed


def batches_in(printed):
    """Return the producer ids of a dumped snapshot, and (first sequence, last sequence) of each batch."""
    batches = re.findall(r"firstSequence: (\d+) lastSequence: (\d+)", printed)
    return set(re.findall(r"producerId: (\d+)", printed)), [(int(first), int(last)) for first, last in batches]


def test_the_last_batches_of_the_producers_of_a_snapshot_are_listed(files, dump):
    producer_ids, batches = batches_in(dump([max((files / "dumped-0").glob("*.snapshot"))]))
    assert len(producer_ids) == 1 and len(batches) == BATCHES_KEPT
    assert all(last + 1 == following for (_, last), (following, _) in pairwise(batches))


def test_a_groups_offsets_are_decoded(files, dump):
    logs = [path for path in files.glob("__consumer_offsets-*/*.log") if path.stat().st_size]
    printed = dump(logs, "--offsets-decoder")
    assert '"group":"read"' in printed and '"topic":"dumped"' in printed
    assert f'"offset":{MESSAGES}' in printed
    assert "protocolType" in printed


@pytest.fixture(scope="module")
def after_transactions(java, tmp_path_factory):
    """Yield the directory of a stopped server with one committed, one aborted and one open transaction."""
    with ServerProcess(tmp_path_factory.mktemp("transactions") / "data", SETTINGS) as server:
        ask = {"address": server.address, "topic": "dumped"}
        for name, how in (("committed", {}), ("aborted", {"commit": False})):
            java.ask("transaction", values=["a", "b"], config={"transactional.id": name}, **ask, **how)
        java.ask("leaveTransactionOpen", values=["c"], config={"transactional.id": "open"}, **ask)
        assert server.stop() == 0
        yield server.data_dir


def test_markers_are_dumped_among_the_records(after_transactions, dump):
    printed = dump(sorted((after_transactions / "dumped-0").glob("*.log")), "--deep-iteration", "--print-data-log")
    assert re.findall("endTxnMarker: ([A-Z]+)", printed) == ["COMMIT", "ABORT"]
    assert len(re.findall(r"headerKeys: \[number\]", printed)) == 5


def test_the_index_of_aborted_transactions_is_dumped(after_transactions, dump):
    printed = dump(sorted((after_transactions / "dumped-0").glob("*.txnindex")))
    assert re.findall(r"firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (\d+)", printed) == [("3", "5", "6")]


@pytest.fixture(scope="module")
def compacted(java, tmp_path_factory):
    """Yield a stopped server's log after compaction, which removed many records and an aborted transaction."""
    often = {"log.cleaner.backoff.ms": 100, "log.flush.offset.checkpoint.interval.ms": 200, "log.segment.bytes": 20_000}
    with ServerProcess(tmp_path_factory.mktemp("compacted") / "data", SETTINGS | often) as server:
        admin = AdminClient({"bootstrap.servers": server.address})
        config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
        admin.create_topics([NewTopic("compacted", 1, config=config)])["compacted"].result(SECONDS)
        producer = Producer({"bootstrap.servers": server.address, "transactional.id": "t", "batch.num.messages": 20})
        producer.init_transactions(SECONDS)

        def transaction(end, value, number):
            producer.begin_transaction()
            for n in range(number):
                producer.produce("compacted", value * 100, f"{value} {n % 50}")
            producer.flush()  # otherwise an abort discards messages that have not been sent
            getattr(producer, f"{end}_transaction")(SECONDS)

        for end, value in (("commit", "1"), ("abort", "2"), ("commit", "3")):
            transaction(end, value, 500)
        with Client(server.address) as client:
            until(lambda: is_compacted(client), what="compaction")
        transaction("abort", "4", 10)  # not cleaned yet, so the index keeps its entry
        assert server.stop() == 0
        yield server.data_dir / "compacted-0"


def is_compacted(client):
    """Return True if the aborted transaction and many other records have been removed."""
    keys, offset, end = [], 0, client.find_offset("compacted", 0, LATEST)
    while offset < end:
        records, offset = client.fetch("compacted", 0, offset)
        keys += [record.key for record in records]
    return len(keys) < 500 and not any(key.startswith(b"2") for key in keys)


def test_a_compacted_log_is_dumped_with_what_is_left_in_it(compacted, dump):
    """The remaining records are dumped; the tool reports removed offsets as gaps, in Kafka's own logs too."""
    gaps = r"(Non-consecutive offsets in .*/\d+\.log\n(  -?\d+ is followed by \d+\n)+)+"
    printed = dump(sorted(compacted.glob("*.log")), "--deep-iteration", "--print-data-log", stderr=gaps)
    assert "isvalid: false" not in printed
    keys = re.findall(r"key: (\d) (\d+) payload", printed)
    assert {("1", str(n)) for n in range(50)} <= set(keys) and not [key for key in keys if key[0] == "2"]
    assert len(keys) < 600


@pytest.mark.parametrize("kind", ["index", "timeindex"])
def test_an_index_of_a_compacted_log_agrees_with_its_segment(compacted, dump, kind):
    printed = dump(sorted(compacted.glob(f"*.{kind}")))
    assert not re.search("mismatch|found|not indexed|out of order", printed, re.IGNORECASE), printed


def test_a_compacted_log_keeps_its_aborted_transaction_and_its_producer(compacted, dump):
    printed = dump(sorted(compacted.glob("*.txnindex")))
    assert ("1503", "1513") in re.findall(r"firstOffset: (\d+) lastOffset: (\d+)", printed)
    producer_ids, batches = batches_in(dump([max(compacted.glob("*.snapshot"))]))
    assert len(producer_ids) == 1 and len(batches) == BATCHES_KEPT


def test_the_log_of_transactions_is_decoded(after_transactions, dump):
    logs = [path for path in after_transactions.glob("__transaction_state-*/*.log") if path.stat().st_size]
    printed = dump(logs, "--transaction-log-decoder")
    assert {"committed", "aborted", "open"} == set(re.findall('"transactionalId":"([a-z]+)"', printed))


def test_the_snapshot_has_the_open_transaction(after_transactions, dump):
    printed = dump([max((after_transactions / "dumped-0").glob("*.snapshot"))])
    assert re.findall(r"currentTxnFirstOffset: OptionalLong\[(\d+)\]", printed) == ["6"]
