"""Commands of a user without the right: the error is named, and an answer without rows is not taken for a fact."""

import pytest
from click.testing import CliRunner

from broker.client.blocking import Client
from flakelog.cli import main
from flakelog.operations.cluster import full_disk, partition_sizes
from tests.compat.server_process import ServerProcess

STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server that lets User:ANONYMOUS in, and allows it nothing."""
    settings = {"authorizer.class.name": STANDARD, "super.users": "User:admin"}
    with ServerProcess(tmp_path_factory.mktemp("data"), settings) as server:
        yield server


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_disks_that_a_user_may_not_see_are_an_error_and_no_empty_table(server, form):
    done = CliRunner().invoke(main, ["cluster", "disks", "--servers", server.address, *form])
    assert done.exit_code == 1 and done.stdout == ""
    assert "disks of broker 1: CLUSTER_AUTHORIZATION_FAILED" in done.stderr


def test_what_only_measures_by_disks_goes_on_without_them(server):
    with Client(server.address) as client:
        assert partition_sizes(client) == {} and full_disk(client) == ""


def test_a_list_of_no_partitions_is_not_taken_for_an_unknown_partition(server):
    done = CliRunner().invoke(main, ["cluster", "describe", "--offline", "--servers", server.address])
    assert done.exit_code == 0 and done.stderr == "none of the partitions is in that state\n"
