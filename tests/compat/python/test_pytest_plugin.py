"""The pytest plugin in a separate pytest process, as users run it."""

import os
import re
import subprocess
import sys
import textwrap

import pytest

from tests.compat.server_process import ROOT
from tests.patience import PROGRAM_SECONDS

HEAVY = ("twisted", "kio", "click", "confluent_kafka", "kazoo", "klein", "broker", "idgen", "flakelog.testing")


@pytest.fixture
def suite(tmp_path):
    """Return a function that runs pytest over the given tests and returns (exit code, output)."""

    def run(tests, *arguments, ini=""):
        (tmp_path / "test_suite.py").write_text(textwrap.dedent(tests))
        (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n" + textwrap.dedent(ini))
        # Load the plugin by name and not by entry point, because test_wheel.py tests its installation.
        command = [sys.executable, "-m", "pytest", "-p", "flakelog.pytest_plugin", "-p", "no:cacheprovider", *arguments]
        env = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""}
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=PROGRAM_SECONDS)
        return done.returncode, done.stdout + done.stderr

    return run


def test_it_loads_nothing_heavy_for_those_who_do_not_use_it():
    program = f"import flakelog.pytest_plugin, sys; print([name for name in {HEAVY} if name in sys.modules])"
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    assert subprocess.check_output([sys.executable, "-c", program], env=env, text=True).strip() == "[]"


def test_each_test_has_a_topic_of_its_own_as_its_marker_says(suite):
    code, printed = suite(
        """
        import pytest
        from broker.client.blocking import Client

        def topics(broker):
            with Client(broker.address) as client:
                return {topic.name: topic.partitions for topic in client.topics()}

        def test_one(flakelog_broker, flakelog_topic):
            assert topics(flakelog_broker) == {flakelog_topic: 1}
            assert flakelog_topic.startswith("test-one-")

        @pytest.mark.flakelog_topic(partitions=3, config={"cleanup.policy": "compact"})
        @pytest.mark.parametrize("value", ["a b/c"])
        def test_other(flakelog_broker, flakelog_topic, value):
            assert topics(flakelog_broker) == {flakelog_topic: 3}

        def test_that_deletes_it(flakelog_broker, flakelog_topic):
            flakelog_broker.delete_topic(flakelog_topic)
        """
    )
    assert code == 0, printed


def test_a_failing_test_shows_what_the_broker_wrote_during_it_and_the_next_one_finds_it_healed(suite):
    code, printed = suite(
        """
        from broker.client.blocking import Client
        from broker.client.errors import ClientError

        def is_closed(broker, api):
            broker.close_next(api)
            try:
                with Client(broker.address) as client:
                    client.topics()
            except ClientError:
                return True

        def test_before(flakelog_broker):
            assert is_closed(flakelog_broker, "ApiVersions")

        def test_fails(flakelog_broker):
            flakelog_broker.fail_next("Produce", 6, times=100)
            closed = is_closed(flakelog_broker, "Metadata")
            flakelog_broker.kill()
            assert not closed

        def test_after(flakelog_broker):
            assert flakelog_broker.running and flakelog_broker.faults_left() == {}
        """
    )
    assert code == 1 and "1 failed, 2 passed" in printed, printed
    _, _, section = printed.partition("flakelog's log (call)")
    assert "a test wants it closed before a Metadata" in section
    assert "ApiVersions" not in section


def test_settings_stand_in_the_ini_file_and_a_wrong_one_is_said(suite):
    tests = """
        def test_many(flakelog_broker):
            from confluent_kafka.admin import AdminClient, NewTopic
            own = flakelog_broker.librdkafka_properties
            admin = AdminClient({"bootstrap.servers": flakelog_broker.bootstrap_servers, **own})
            admin.create_topics([NewTopic("a", -1)])["a"].result(60)
            assert len(admin.list_topics("a", timeout=60).topics["a"].partitions) == 4
        """
    code, printed = suite(tests, ini="flakelog_settings =\n    num.partitions = 4\n")
    assert code == 0, printed
    code, printed = suite(tests, ini="flakelog_settings =\n    num.partition = 4\n")
    assert code == 1 and "did you mean num.partitions" in printed, printed
    code, printed = suite(tests, ini="flakelog_settings =\n    num.partitions\n")
    assert "flakelog_settings: 'num.partitions' must be NAME=VALUE" in printed


def test_the_ini_file_makes_the_broker_a_cluster_which_the_next_test_finds_healed(suite):
    tests = """
        def test_before(flakelog_broker):
            flakelog_broker.kill(1)
            flakelog_broker.stall(2)

        def test_after(flakelog_broker, flakelog_topic):
            from confluent_kafka.admin import AdminClient
            own = flakelog_broker.librdkafka_properties
            admin = AdminClient({"bootstrap.servers": flakelog_broker.bootstrap_servers, **own})
            assert sorted(admin.list_topics(flakelog_topic, timeout=60).brokers) == [1, 2]
        """
    code, printed = suite(tests, ini="flakelog_nodes = 2\nflakelog_security = SASL_SSL\n")
    assert code == 0, printed
    code, printed = suite(tests, ini="flakelog_nodes = many\n")
    assert "flakelog_nodes: 'many' must be a number from 1 to 16" in printed
    code, printed = suite(tests, ini="flakelog_security = TLS\n")
    assert "flakelog_security: 'TLS' must be one of PLAINTEXT, SSL" in printed


def test_a_marker_with_an_unknown_word_is_refused(suite):
    code, printed = suite(
        """
        import pytest

        @pytest.mark.flakelog_topic(partition=3)
        def test_it(flakelog_topic): ...
        """
    )
    assert code == 1 and "the marker is flakelog_topic(partitions=1, config=None), by these names" in printed


def test_under_xdist_each_worker_has_its_broker(suite):
    code, printed = suite(
        """
        import pytest

        @pytest.mark.parametrize("number", range(6))
        def test_it(flakelog_broker, flakelog_topic, number, worker_id):
            print(f"<{worker_id} {flakelog_broker.pid}>")
            flakelog_broker.stall()  # nobody else may notice
            flakelog_broker.resume()
        """,
        *("-p", "xdist", "-n", "2", "-rP"),
    )
    assert code == 0, printed
    brokers = set(re.findall(r"<(gw\d) (\d+)>", printed))
    assert len(brokers) == len({worker for worker, _ in brokers}) <= 2
