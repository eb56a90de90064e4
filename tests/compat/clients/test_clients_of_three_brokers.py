"""The tests of clients pass unchanged when three brokers that are one cluster stand in the place of one."""

import os
import subprocess
import sys

import pytest

from tests.compat.cluster_servers import THREE_BROKERS
from tests.compat.server_process import ROOT
from tests.patience import PROGRAM_SECONDS

FILES = (
    "clients/test_admin_clients",
    "clients/test_errors_as_kafka",
    "clients/test_java_clients",
    "clients/test_kcat",
    "clients/test_node_clients",
    "clients/test_old_records",
    "clients/test_stock_clients",
    "clients/test_topic_records",
    "clients/test_transactions",
    "kafka_tools/test_kafka_scripts",
    "kafka_tools/test_kafka_tools",
    "python/test_producer",
    "python/test_python_admin",
    "python/test_python_api",
    "python/test_python_ends",
    "python/test_python_exactly_once",
    "python/test_python_producer",
    "python/test_transactional_producer",
)
OF_ONE_BROKER = (  # these count brokers, name their leader, or send frames to the one address
    "test_a_callback_may_send_the_next_message",  # a consumer of three brokers reads partitions in any order
    "test_a_consumer_begins_at_an_id",  # ids of one millisecond are in the order of brokers
    "test_a_log_is_assigned_to_the_directory_it_is_in",
    "test_a_reassignment_with_a_throttle_sets_the_rates_and_clears_them",
    "test_confluent_describes_and_alters_a_brokers_settings",
    "test_confluent_describes_the_cluster_and_topics",
    "test_kafka_python_describes_directories_features_and_reassignments",
    "test_kafka_python_makes_grows_and_describes_topics",
    "test_log_directories_are_described",
    "test_settings_come_from_where_they_do_in_kafka",
    "test_the_cluster_as_kafkajs_sees_it",
    "test_the_cluster_has_one_node_which_is_its_controller",
    "test_the_cluster_its_disks_quotas_and_transactions_are_shown",
    "test_the_quorum_is_this_node",
    "test_the_metadata_names_the_node_and_the_topics",
    "test_the_tools_print_kafkas_text_where_scripts_search_for_it",
    "test_the_versions_of_each_api_are_read",
    "test_topics_are_made_described_and_deleted",
    "test_topics_are_made_listed_described_altered_and_deleted",
    "test_what_platformatic_asks_of_the_node",
)


@pytest.mark.soak
@pytest.mark.parametrize("file", FILES)
def test_a_file_of_tests_passes_on_three_brokers(file):
    others = " and ".join(f"not {name}" for name in OF_ONE_BROKER)
    argv = [sys.executable, "-m", "pytest", "-q", f"tests/compat/{file}.py", "-m", "not soak", "-k", others]
    env = os.environ | {THREE_BROKERS: "1"}
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=2 * PROGRAM_SECONDS)
    assert done.returncode == 0, done.stdout
