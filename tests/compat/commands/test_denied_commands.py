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


@pytest.fixture(scope="module")
def describing(tmp_path_factory):
    """A server that lets User:ANONYMOUS describe the topic `shown`, and nothing else."""
    directory = tmp_path_factory.mktemp("describing") / "data"
    settings = {"authorizer.class.name": STANDARD, "super.users": "User:ANONYMOUS"}
    with ServerProcess(directory, settings) as server, Client(server.address) as client:
        client.create_topic("shown")
        rule = ["--allow", "User:ANONYMOUS", "--operation", "describe", "--topic", "shown"]
        done = CliRunner().invoke(main, ["acl", "add", *rule, "--servers", server.address])
        assert done.exit_code == 0, done.output
    with ServerProcess(directory, settings | {"super.users": "User:admin"}) as server:
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


@pytest.mark.parametrize("things", ["topic", "group", "transactions"])
def test_an_empty_list_says_that_others_may_be_hidden_from_the_user(server, things):
    done = CliRunner().invoke(main, [things, "list", "--servers", server.address])
    name = things if things.endswith("s") else f"{things}s"
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", f"there are no {name} that you may see\n")


@pytest.mark.parametrize("verb, command", [("write", ["produce"]), ("read", ["consume"])])
def test_a_denied_command_names_the_missing_right_and_what_grants_it(server, verb, command):
    done = CliRunner().invoke(main, [*command, "orders", "--servers", server.address], input="one\n")
    assert done.exit_code == 1
    assert (
        f"topic orders: TOPIC_AUTHORIZATION_FAILED; the user lacks the right {verb} on topic orders; unless a "
        "rule denies it (flakelog acl list), this grants it: "
        f"flakelog acl add --allow User:NAME --operation {verb} --topic orders"
    ) in done.stderr


def test_a_member_of_a_group_that_it_may_not_read_hears_so(describing):
    done = CliRunner().invoke(main, ["consume", "shown", "--group", "readers", "--servers", describing.address])
    assert done.exit_code == 1 and "flakelog acl add --allow User:NAME --operation read --" in done.stderr


def test_a_message_that_is_refused_names_the_right_too(describing):
    for number in (1, 20_000):  # by our own client, and by librdkafka
        command = ["produce", "shown", "--servers", describing.address]
        done = CliRunner().invoke(main, command, input="message\n" * number)
        assert done.exit_code == 1
        assert "flakelog acl add --allow User:NAME --operation write --topic shown" in done.stderr
