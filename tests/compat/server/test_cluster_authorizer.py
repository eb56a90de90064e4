"""The start of a cluster's broker with an authorizer, while its brokers prove nothing to each other."""

import pytest

from tests.compat.cluster_servers import SETTINGS
from tests.compat.server_process import DidNotStart, ServerProcess

STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def server(tmp_path, zookeeper, **more):
    settings = SETTINGS | {"zookeeper.connect": f"{zookeeper.hosts}/authorizer", "authorizer.class.name": STANDARD}
    return ServerProcess(tmp_path / "data", settings | {name.replace("_", "."): value for name, value in more.items()})


def test_the_start_refuses_an_authorizer_because_brokers_would_deny_each_other_everything(tmp_path, zookeeper):
    with pytest.raises(DidNotStart) as refused:
        server(tmp_path, zookeeper).start()
    assert "brokers prove nothing to each other at listener BROKERS" in refused.value.stderr
    assert "or add User:ANONYMOUS to super.users" in refused.value.stderr


def test_the_start_says_aloud_that_everyone_who_proves_nothing_is_a_super_user(tmp_path, zookeeper):
    with server(tmp_path, zookeeper, super_users="User:ANONYMOUS") as started:
        assert "User:ANONYMOUS is a super user: every client that proves nothing may do everything" in started.log
        assert "may change every node of the cluster, and read the hashes of passwords" in started.log
