"""`Admin` over a server with an authorizer: access rules (KIP-140) and users that log in by SCRAM (KIP-554)."""

import pytest
from click.testing import CliRunner

from broker.client.blocking import Client
from broker.client.errors import BrokerError, NotAuthenticated
from flakelog import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    Admin,
    PatternType,
    ResourceType,
    ScramCredentials,
    ScramDeletion,
    ScramUpsertion,
)
from flakelog.cli import main
from tests.compat.server_process import ServerProcess
from tests.patience import MS

STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
SCRAM = "SCRAM-SHA-512"
LISTENERS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": SCRAM,
    "authorizer.class.name": STANDARD,
    "super.users": "User:ANONYMOUS",
}


def rule(name, operation=AclOperation.READ, *, pattern=PatternType.LITERAL, user="User:ada"):
    return AclBinding(ResourceType.TOPIC, pattern, name, user, "*", operation, AclPermissionType.ALLOW)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with ServerProcess(tmp_path_factory.mktemp("data"), LISTENERS) as server:
        yield server


@pytest.fixture
def admin(server):
    with Admin(server.address) as admin:
        yield admin
        admin.delete_acls([AclBindingFilter()])


def login_of(user, password):
    """Return the properties of a client that logs in as a user."""
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": SCRAM,
        "sasl.jaas.config": f'{module} required username="{user}" password="{password}";',
    }


def client_of(server, user, password):
    return Client(server.addresses["broker.SASL_PLAINTEXT"], timeout_ms=MS, security=login_of(user, password))


def flakelog(server, command, stdin=""):
    done = CliRunner().invoke(main, [*command.split(), "--servers", server.address], input=stdin)
    assert done.exit_code == 0, done.stderr
    return done.stdout


# --- access rules ----------------------------------------------------------------------------------------------------


def test_rules_are_created_and_a_filter_selects_by_what_it_names(admin):
    orders, begins, other = rule("orders"), rule("ord", pattern=PatternType.PREFIXED), rule("pay", user="User:bob")
    admin.create_acls([orders, begins, other])
    admin.create_acls([orders])  # one that is there is no error
    assert admin.describe_acls() == sorted([orders, begins, other])
    assert admin.describe_acls(AclBindingFilter(principal="User:bob")) == [other]
    assert admin.describe_acls(AclBindingFilter(operation=AclOperation.WRITE)) == []


def test_the_pattern_type_match_selects_all_rules_that_hold_for_a_resource(admin):
    """KIP-290: MATCH finds literal, prefixed and wildcard rules; ANY compares the names themselves."""
    literal, prefixed, all_topics = rule("orders"), rule("ord", pattern=PatternType.PREFIXED), rule("*")
    admin.create_acls([literal, prefixed, all_topics, rule("pay")])
    of_name = AclBindingFilter(ResourceType.TOPIC, PatternType.MATCH, "orders")
    assert admin.describe_acls(of_name) == sorted([literal, prefixed, all_topics])
    assert admin.describe_acls(of_name._replace(pattern_type=PatternType.ANY)) == [literal]


def test_several_filters_delete_their_rules_in_one_call_and_return_them(admin):
    orders, pay, remaining = rule("orders"), rule("pay"), rule("kept")
    admin.create_acls([orders, pay, remaining])
    filters = [AclBindingFilter(name="orders"), AclBindingFilter(name="pay"), AclBindingFilter(name="nothing")]
    assert admin.delete_acls(filters) == sorted([orders, pay])
    assert admin.describe_acls() == [remaining]


def test_a_rule_that_is_refused_is_named_and_the_others_are_added(admin):
    with pytest.raises(BrokerError, match="rule for ada on TOPIC pay: INVALID_REQUEST.*principalType:principalName"):
        admin.create_acls([rule("orders"), rule("pay", user="ada")])
    assert admin.describe_acls() == [rule("orders")]


def test_a_text_in_place_of_a_value_is_refused_with_the_values_that_there_are(admin):
    wrong = rule("orders")._replace(operation="READ")
    with pytest.raises(ValueError, match="operation='READ' is no Operation, which has ANY, ALL, READ, WRITE"):
        admin.create_acls([wrong])
    with pytest.raises(ValueError, match="pattern_type='prefix' is no PatternType.*PREFIXED"):
        admin.describe_acls(AclBindingFilter(pattern_type="prefix"))


def test_a_cluster_without_an_authorizer_keeps_no_rules(group_broker):
    with Admin(group_broker.address) as admin:
        with pytest.raises(BrokerError, match="access rules: SECURITY_DISABLED"):
            admin.describe_acls()
        with pytest.raises(BrokerError, match="rule for User:ada on TOPIC orders: SECURITY_DISABLED"):
            admin.create_acls([rule("orders")])
        with pytest.raises(BrokerError, match="access rules: SECURITY_DISABLED"):
            admin.delete_acls([AclBindingFilter()])


# --- users -----------------------------------------------------------------------------------------------------------


def test_a_user_logs_in_with_the_password_that_was_set_and_not_after_it_was_deleted(admin, server):
    admin.alter_user_scram_credentials([ScramUpsertion("ada", SCRAM, "ada-secret", iterations=8192)])
    admin.create_acls([rule("orders", AclOperation.DESCRIBE)])
    assert admin.describe_user_scram_credentials("ada") == [ScramCredentials("ada", {SCRAM: 8192})]
    with client_of(server, "ada", "ada-secret") as client:
        assert client.topics() == []
    with client_of(server, "ada", "wrong") as client, pytest.raises(NotAuthenticated):
        client.topics()
    admin.alter_user_scram_credentials(deletions=[ScramDeletion("ada", SCRAM)])
    with client_of(server, "ada", "ada-secret") as client, pytest.raises(NotAuthenticated):
        client.topics()


@pytest.mark.parametrize("source", ["file", "-"])
def test_the_command_sets_a_password_from_a_file_or_from_stdin_and_its_user_logs_in(admin, server, tmp_path, source):
    admin.create_acls([rule("orders", AclOperation.DESCRIBE)])
    (tmp_path / "file").write_text("ada secret\n")
    file = source if source == "-" else tmp_path / source
    output = flakelog(server, f"user set ada --password-file {file} --iterations 5000", "ada secret\n")
    assert output == "ada has a new password for SCRAM-SHA-512\n"
    with client_of(server, "ada", "ada secret") as client:
        assert client.topics() == []
    assert "SCRAM-SHA-512" in flakelog(server, "user delete ada --yes")
    with client_of(server, "ada", "ada secret") as client, pytest.raises(NotAuthenticated):
        client.topics()


def test_users_are_described_with_their_mechanisms_and_iterations(admin):
    both = ScramUpsertion("bob", SCRAM, "bob-secret"), ScramUpsertion("cy", "SCRAM-SHA-256", "cy-secret", 4097)
    admin.alter_user_scram_credentials(both)
    described = [ScramCredentials("bob", {SCRAM: 4096}), ScramCredentials("cy", {"SCRAM-SHA-256": 4097})]
    assert admin.describe_user_scram_credentials() == described
    assert admin.describe_user_scram_credentials("bob", "nobody") == [described[0], ScramCredentials("nobody", {})]
    admin.alter_user_scram_credentials(
        deletions=[ScramDeletion("bob", SCRAM), ScramDeletion("cy", "SCRAM-SHA-256")]
    )


def test_an_alteration_that_is_refused_names_its_user(admin):
    with pytest.raises(BrokerError, match="user nobody: RESOURCE_NOT_FOUND"):
        admin.alter_user_scram_credentials(deletions=[ScramDeletion("nobody", SCRAM)])
    with pytest.raises(BrokerError, match="user ada: DUPLICATE_RESOURCE"):
        admin.alter_user_scram_credentials([ScramUpsertion("ada", SCRAM, "x")], [ScramDeletion("ada", SCRAM)])
    with pytest.raises(BrokerError, match="user ada: DUPLICATE_RESOURCE"):
        admin.describe_user_scram_credentials("ada", "ada")


def test_what_cannot_be_sent_is_refused_before_and_shows_no_password(admin):
    few = ScramUpsertion("ada", SCRAM, "ada-secret", iterations=10)
    assert "ada-secret" not in repr(few)
    with pytest.raises(ValueError, match="user ada: iterations=10: Too few iterations; 4096 to 16384 are taken"):
        admin.alter_user_scram_credentials([few])
    with pytest.raises(ValueError, match="user ada: mechanism='PLAIN': must be one of SCRAM-SHA-256, SCRAM-SHA-512"):
        admin.alter_user_scram_credentials([ScramUpsertion("ada", "PLAIN", "ada-secret")])
    with pytest.raises(ValueError, match="user ada: the password is empty"):
        admin.alter_user_scram_credentials([ScramUpsertion("ada", SCRAM, "")])


def test_a_client_without_rights_on_the_cluster_changes_neither_rules_nor_users(admin, server):
    admin.alter_user_scram_credentials([ScramUpsertion("eve", SCRAM, "eve-secret")])
    security = login_of("eve", "eve-secret")
    with Admin(server.addresses["broker.SASL_PLAINTEXT"], timeout_ms=MS, security=security) as eve:
        for attempt in (
            eve.describe_acls,
            lambda: eve.create_acls([rule("orders")]),
            lambda: eve.delete_acls([AclBindingFilter()]),
            eve.describe_user_scram_credentials,
            lambda: eve.alter_user_scram_credentials([ScramUpsertion("root", SCRAM, "x")]),
        ):
            with pytest.raises(BrokerError, match="CLUSTER_AUTHORIZATION_FAILED"):
                attempt()
    admin.alter_user_scram_credentials(deletions=[ScramDeletion("eve", SCRAM)])
