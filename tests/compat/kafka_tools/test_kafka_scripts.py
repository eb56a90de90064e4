"""Scripts with Kafka's tools alter settings that have no effect here, and search for the texts of errors.

Every test here has also passed against Apache Kafka 4.3.1, one node.
"""

import json

import pytest

from tests.compat.cluster_servers import one_or_three
from tests.compat.stock_java import need_java

TOOLS = "org.apache.kafka.tools"

need_java()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with one_or_three(tmp_path_factory.mktemp("scripts")) as server:
        yield server


@pytest.fixture(scope="module")
def topic(java, server):
    java.ask("createTopic", address=server.address, topic="flights", partitions=2)
    return "flights"


@pytest.fixture
def run(java, server):
    """Return run("TopicCommand", "--list"), which returns stdout; the tool must succeed and say nothing on stderr."""

    def ran(tool, *arguments):
        main = tool if tool.startswith("kafka.") else f"{TOOLS}.{tool}"
        done = java.tool(main, "--bootstrap-server", server.address, *arguments)
        assert (done.exit, done.stderr) == (0, ""), done
        return done.stdout

    return ran


def test_a_reassignment_with_a_throttle_sets_the_rates_and_clears_them(run, topic, tmp_path):
    plan = {"version": 1, "partitions": [{"topic": topic, "partition": 0, "replicas": [1]}]}
    (tmp_path / "plan").write_text(json.dumps(plan))
    command = ("reassign.ReassignPartitionsCommand", "--reassignment-json-file", tmp_path / "plan")
    printed = run(*command, "--execute", "--throttle", "1000000")
    assert "The inter-broker throttle limit was set to 1000000 B/s" in printed
    assert "Successfully started partition reassignment" in printed
    described = ("kafka.admin.ConfigCommand", "--describe", "--entity-type")
    rates = run(*described, "brokers", "--entity-name", 1)
    for rate in ("leader.replication.throttled.rate=1000000", "follower.replication.throttled.rate=1000000"):
        assert rate in rates
    verified = run(*command, "--verify")
    assert "Clearing broker-level throttles on broker 1" in verified and "Clearing topic-level throttles" in verified
    assert "throttled" not in run(*described, "brokers", "--entity-name", 1)
    assert "throttled" not in run(*described, "topics", "--entity-name", topic)


@pytest.mark.parametrize("name, value", [("log.cleaner.threads", "2"), ("num.io.threads", "9")])
def test_a_setting_that_is_dynamic_in_kafka_and_unused_here_is_altered_and_described(run, name, value):
    command, entity = "kafka.admin.ConfigCommand", ("--entity-type", "brokers", "--entity-name", 1)
    run(command, "--alter", *entity, "--add-config", f"{name}={value}")
    assert f"{name}={value} sensitive=false synonyms={{DYNAMIC_BROKER_CONFIG:{name}={value}, " in run(
        command, "--describe", *entity
    )
    run(command, "--alter", *entity, "--delete-config", name)
    assert name not in run(command, "--describe", *entity)


@pytest.mark.parametrize(
    "command, text",
    [
        (("TopicCommand", "--create", "--topic", "{topic}"), "Topic '{topic}' already exists."),
        (("TopicCommand", "--create", "--topic", "a/b"), "Topic name is invalid: 'a/b' contains one or more"),
        (("TopicCommand", "--alter", "--topic", "{topic}", "--partitions", "1"), "The topic {topic} currently has 2"),
        (("TopicCommand", "--create", "--topic", "r", "--replication-factor", "3"), "only 1 broker(s) are registered"),
        (("TopicCommand", "--create", "--topic", "c", "--config", "retention.ms=x"), "Not a number of type LONG"),
    ],
)
def test_the_tools_print_kafkas_text_where_scripts_search_for_it(java, server, topic, command, text):
    tool, *arguments = (word.format(topic=topic) for word in command)
    done = java.tool(f"{TOOLS}.{tool}", "--bootstrap-server", server.address, *arguments)
    assert done.exit != 0 and text.format(topic=topic) in done.stdout + done.stderr, done
