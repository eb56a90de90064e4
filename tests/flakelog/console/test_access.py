"""The console has the rights of its principal: access rules decide what its pages show and what its actions do."""

import pytest

from broker.client.errors import ClientError
from broker.security.authorization.acl import Permission
from flakelog.config import ServerConfig
from flakelog.console import messages
from flakelog.console.access import MissingRight
from flakelog.console.pages import NotThere, environment, render
from flakelog.console.security import RequestRefused, SecurityHeaders, Session, console_address, gate_of
from idgen.settings import InvalidSetting
from tests.broker.engine_client import batch_of
from tests.broker.handlers import consumer_group
from tests.broker.handlers.rights_client import STANDARD, allow
from tests.flakelog.console.world import World, fields_of, html_of, now

TOKEN = "correct horse battery"


@pytest.fixture
def world():
    world = World(user="console", authorizer_class_name=STANDARD, super_users="User:root")
    world.root = world.broker.connect()
    world.root.conn.user = "root"
    for topic in ("orders", "payments"):
        world.broker.create(topic)
        world.root.produce(topic, b"a", b"b")
    return world


def grant(world, *words):
    """Replace all rules by these of the console."""
    world.broker.services.authorizer.use(frozenset(allow(rule, user="User:console") for rule in words))


def denied(call):
    """Return what the console says of a right that it lacks."""
    with pytest.raises(MissingRight) as missing:
        call()
    return str(missing.value)


# --- what pages show -------------------------------------------------------------------------------------------------


def test_without_a_rule_the_console_shows_nothing_of_topics_groups_and_quotas(world):
    assert world.view("topics").model.rows == [] and world.view("topics").model.topics == 0
    assert world.view("groups").model.rows == [] and world.view("transactions").model.rows == []
    for page in ("overview", "quotas"):
        assert "on the cluster" in denied(lambda page=page: world.view(page))
    assert "describe on topic orders" in denied(lambda: world.view("topic", "orders"))
    assert "describe on group readers" in denied(lambda: world.view("group", group="readers"))


def test_a_page_that_is_denied_names_the_right_and_the_command_that_grants_it(world):
    assert denied(lambda: world.view("topic", "orders")) == (
        "the console acts as User:console, which lacks the right describe on topic orders; unless a "
        "rule denies it (flakelog acl list), this grants it: "
        "flakelog acl add --allow User:console --operation describe --topic orders"
    )
    assert denied(lambda: world.view("overview")).endswith(
        "flakelog acl add --allow User:console --operation describe --cluster"
    )


def test_a_name_is_quoted_for_the_shell_in_the_command(world):
    reason = denied(lambda: world.view("group", group="a'; rm -rf /"))
    assert reason.endswith("""--operation describe --group 'a'"'"'; rm -rf /'""")


def test_a_topic_that_is_not_there_and_one_that_may_not_be_seen_look_alike(world):
    assert denied(lambda: world.view("topic", "nowhere")) == denied(lambda: world.view("topic", "orders")).replace(
        "orders", "nowhere"
    )


def test_the_list_has_the_topics_that_the_principal_may_describe(world):
    grant(world, "describe topic orders")
    assert [row.name for row in world.view("topics").model.rows] == ["orders"]
    page = world.view("topic", "orders").model
    assert page.messages == 2 and page.configs == []
    grant(world, "describe topic orders", "describe_configs topic orders")
    assert world.view("topic", "orders").model.configs


def test_a_group_is_shown_without_topics_that_may_not_be_seen(world):
    commit(world, "orders", "payments")
    grant(world, "describe group readers", "describe topic orders")
    assert [row.group_id for row in world.view("groups").model.rows] == ["readers"]
    page = world.view("group", group="readers").model["now"]
    assert [row.topic for row in page.positions] == ["orders"] and page.topics == ["orders"]
    assert world.view("groups").model.rows[0].topics == 1
    assert list(world.view("topic", "orders").model.groups) == ["readers"]
    grant(world, "describe topic orders")
    assert list(world.view("topic", "orders").model.groups) == []


def test_with_the_right_to_describe_the_cluster_all_groups_are_listed_as_by_listgroups(world):
    commit(world, "orders")
    grant(world, "describe cluster")
    (row,) = world.view("groups").model.rows
    assert (row.group_id, row.topics) == ("readers", 0)
    assert "describe on group readers" in denied(lambda: world.view("group", group="readers"))


def test_rights_on_the_cluster_open_the_overview_and_the_quotas(world):
    grant(world, "describe cluster", "describe_configs cluster")
    assert world.view("overview").model["now"].topics == 2
    assert world.view("quotas").model.rows == []


def test_live_figures_end_when_the_right_is_taken_away(world):
    grant(world, "describe cluster")
    world.live(page="overview")
    grant(world)
    assert "describe on the cluster" in denied(lambda: world.live(page="overview"))


def test_messages_need_the_right_to_read_and_the_broker_judges_it(world):
    assert "describe on topic orders" in denied(lambda: now(world.messages.messages_page(fields_of({}), "orders")))
    grant(world, "describe topic orders")
    message, whole = fields_of({"partition": 0, "offset": 1}), fields_of({"start": "oldest"})
    for call in (
        lambda: world.messages.messages_page(whole, "orders"),
        lambda: world.messages.message_page(message, "orders"),
        lambda: world.search.search_page(fields_of({"text": "a"}), "orders"),
    ):
        assert denied(lambda call=call: now(call())).endswith("--operation read --topic orders")
    grant(world, "read topic orders")
    assert ">b<" in html_of(now(world.messages.messages_page(whole, "orders")))
    assert now(world.messages.message_page(message, "orders")).model["row"].offset == 1


def test_a_search_a_tail_and_dead_letters_are_of_topics_that_may_be_seen(world):
    for call in (
        lambda: world.search.search_page(fields_of({"text": "a"}), "orders"),
        lambda: world.messages.tail(fields_of({"topic": "orders"}), ""),
        lambda: world.work.letters_page(fields_of({}), "orders"),
        lambda: world.messages.raw(fields_of({}), "orders"),
    ):
        assert "describe on topic orders" in denied(lambda call=call: now(call()))


def test_a_denied_page_is_a_line_of_the_audit_log_that_names_the_principal(world):
    denied(lambda: world.view("topic", "orders"))
    assert world.broker.reported[-1] == (
        "Principal = User:console is Denied operation = DESCRIBE from host = local on resource = Topic:LITERAL:orders "
        "for request = Console"
    )


def test_the_pages_name_the_principal(world):
    templates = environment("User:console")
    html = render(templates, world.view("topics"), Session("a", "csrf"), True).decode()
    assert "the console acts as <bdi>User:console</bdi>" in html
    assert "acts as" not in world.html("topics"), "without an authorizer there is none"


# --- what actions do -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "action, fields, right",
    [
        ("create-topic", {"name": "made"}, "create on topic made"),
        ("add-partitions", {"topic": "orders", "partitions": 3}, "alter on topic orders"),
        ("alter-setting", {"topic": "orders", "setting": "retention.ms", "value": "5"}, "alter-configs on topic ord"),
        ("send-message", {"topic": "orders", "value": "x"}, "write on topic orders"),
        ("reset-offsets", {"group": "readers", "to": "earliest"}, "describe on group readers"),
    ],
)
def test_an_action_is_judged_by_the_broker_as_that_of_any_client(world, action, fields, right):
    grant(world, "describe topic orders", "describe_configs topic orders")
    form = fields_of(fields | {"confirmed": "yes"})
    reason = denied(lambda: now(world.actions.act(form, action, "127.0.0.1:5")))
    assert right in reason
    assert any("Principal = User:console is Denied" in line for line in world.broker.reported)


def test_a_topic_is_deleted_by_who_may_delete_it(world):
    """Its plan needs the right to describe it only, because it changes nothing."""
    grant(world, "describe topic orders")
    topic = fields_of({"topic": "orders", "typed": "orders"})
    planned = now(world.actions.act(topic, "delete-topic", "127.0.0.1:5")).model["planned"]
    confirmed = fields_of({"topic": "orders", "typed": "orders", "confirmed": "yes"} | planned.seen)
    assert "delete on topic orders" in denied(lambda: now(world.actions.act(confirmed, "delete-topic", "x")))
    grant(world, "describe topic orders", "delete topic orders")
    assert now(world.actions.act(confirmed, "delete-topic", "x")).model.sentence == "The topic orders was deleted."


def test_the_form_of_an_action_tells_nothing_of_a_topic_that_may_not_be_seen(world):
    for topic in ("orders", "there-is-none"):
        with pytest.raises(NotThere, match=f"there is no topic '{topic}'"):
            world.actions.form_page(fields_of({"topic": topic}), "add-partitions")


def test_a_right_to_the_action_is_enough(world):
    grant(world, "write topic orders")
    done = now(world.actions.act(fields_of({"topic": "orders", "value": "x", "confirmed": "yes"}), "send-message", "x"))
    assert "offset 2" in done.model.sentence


def test_the_principal_that_is_a_super_user_by_setting_may_do_everything():
    world = World(user="root", authorizer_class_name=STANDARD, super_users="User:root")
    world.broker.create("orders")
    assert world.view("overview").model["now"].topics == 1
    assert now(world.actions.act(fields_of({"name": "made", "confirmed": "yes"}), "create-topic", "x")).model.sentence


# --- whether it is open ----------------------------------------------------------------------------------------------


def headers():
    return SecurityHeaders(["127.0.0.1:8609"], ["http://127.0.0.1:8609"])


@pytest.mark.parametrize(
    "given, missing",
    [
        ({}, "set flakelog.console.principal=User:NAME and flakelog.console.token"),
        ({"console_token": TOKEN}, "set flakelog.console.principal=User:NAME"),
        ({"console_principal": "User:console"}, "set flakelog.console.token"),
    ],
)
def test_with_an_authorizer_the_console_is_closed_without_a_principal_and_a_token(given, missing):
    """It has no right by accident, such as those of User:ANONYMOUS where that is a super user."""
    config = ServerConfig(**given)
    gate = gate_of(config, "127.0.0.1:8609", b"s" * 32, has_authorizer=True)
    with pytest.raises(RequestRefused) as refused:
        gate.session(headers(), 0, "a")
    assert refused.value.status == 403 and refused.value.reason.endswith(missing)
    assert console_address(config, "127.0.0.1:8609", "here", has_authorizer=True) is None


def test_with_an_authorizer_a_principal_and_a_token_open_the_console():
    config = ServerConfig(console_principal="User:console", console_token=TOKEN)
    gate = gate_of(config, "127.0.0.1:8609", b"s" * 32, has_authorizer=True)
    assert gate.closed is None and gate.login(headers(), TOKEN, 0, "a").cookie


def test_without_an_authorizer_a_principal_changes_nothing():
    config = ServerConfig(console_principal="User:console")
    assert gate_of(config, "127.0.0.1:8609", b"s" * 32).session(headers(), 0, "a").cookie


@pytest.mark.parametrize("principal", ["console", "User:", "User:*", "Group:admins"])
def test_a_principal_is_one_user(principal):
    with pytest.raises(InvalidSetting, match="must be a user, as in User:console"):
        ServerConfig(console_principal=principal)


def test_a_rule_that_denies_holds_for_the_console_too(world):
    rules = [allow("all topic orders", user="User:console"), allow("describe topic orders", Permission.DENY, "User:*")]
    world.broker.services.authorizer.use(frozenset(rules))
    assert "describe on topic orders" in denied(lambda: world.view("topic", "orders"))


def commit(world, *topics):
    """Let the group readers, which has no members, commit an offset of each topic."""
    consumer_group.find(world.root, key="readers")
    for topic in topics:
        assert consumer_group.commit(world.root, 1, topic=topic, group="readers") == 0


def test_an_operation_meets_a_missing_right_as_an_error_of_the_client(world):
    """An operation that has done a part tells so after such an error, as that letters were sent and not marked."""
    with pytest.raises(ClientError, match="User:console, which lacks the right describe on topic payments"):
        world.jobs.client.produce("payments", 0, batch_of(b"a"))


def test_partitions_that_may_not_be_seen_take_no_place_among_those_that_an_id_is_looked_for_in(world):
    services = world.broker.services
    rights = (lambda topic: True, lambda topic: topic == "orders")
    candidates = [messages.candidates(services, 1, sees) for sees in rights]
    assert [{topic for topic, _ in partitions} for partitions in candidates] == [{"orders", "payments"}, {"orders"}]
