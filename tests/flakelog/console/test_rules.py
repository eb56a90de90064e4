"""The pages of access rules and of users, and the actions that create and delete a rule."""

import re

import pytest

from broker.client.errors import BrokerError
from broker.security.authorization.acl import AclBinding, Operation, PatternType, Permission, ResourceType
from flakelog.console.access import MissingRight
from flakelog.console.rules import sentence_of
from flakelog.console.visit import BadField
from flakelog.operations import acls, users
from flakelog.operations.users import ScramUpsertion
from tests.broker.handlers.rights_client import STANDARD, allow
from tests.flakelog.console.world import World, fields_of, html_of, now

HOSTILE = '"><script>alert(1)</script>\u202e'
RULE = {"kind": "topic", "name": "orders", "principal": "User:ada", "operation": "read"}
WORDS = "User:ada has the right read on topic orders, from all hosts"


@pytest.fixture
def world():
    """Run a broker whose console may do everything."""
    return World(user="root", authorizer_class_name=STANDARD, super_users="User:root")


def add(world, *rules):
    acls.add_acls(world.client, rules)


def shown(world, **fields):
    return now(world.rules.rules_page(fields_of(fields)))


def act(world, action, **fields):
    return now(world.actions.act(fields_of(fields), action, "127.0.0.1:5"))


def rules_of(world):
    return set(world.broker.services.metadata.acls)


# --- the page of rules -----------------------------------------------------------------------------------------------


def test_all_rules_are_listed_those_of_a_resource_together(world):
    rules = [allow("write topic pay"), allow("read topic ord..."), allow("read group readers"), allow("read topic pay")]
    add(world, *rules)
    view = shown(world)
    assert view.model.rows == sorted(rules)
    html = html_of(view)
    assert html.count("<tr>") == 5 and "begins with <bdi" in html


@pytest.mark.parametrize(
    "fields, number",
    [
        ({"kind": "group"}, 1),
        ({"name": "orders"}, 3),
        ({"name": "orders", "kind": "group"}, 0),
        ({"principal": "User:bob"}, 1),
        ({"principal": "bob"}, 1),
        ({"principal": "User:nobody"}, 0),
    ],
)
def test_a_filter_is_kafkas_and_a_name_finds_all_rules_that_hold_for_it(world, fields, number):
    """KIP-290: a literal rule, one of a prefix, and one of all names hold for the topic orders."""
    add(
        world, allow("read topic orders"), allow("read topic ord..."), allow("read topic *"), allow("read topic pay"),
        allow("read group readers", user="User:bob"),
    )  # fmt: skip
    assert len(shown(world, **fields).model.rows) == number


def test_pages_of_many_rules_keep_the_filter(world):
    add(world, *(allow(f"read topic t{number}") for number in range(101)))
    html = html_of(shown(world, kind="topic"))
    assert "1–100 of 101 rules" in html and "/console/rules?kind=topic&amp;name=&amp;principal=&amp;page=1" in html
    assert len(shown(world, kind="topic", page=1).model.rows) == 1


def test_an_unknown_kind_is_refused_with_those_that_there_are(world):
    with pytest.raises(BadField, match="rules are about topic, group, cluster, transactional-id"):
        shown(world, kind="broker")


def test_without_an_authorizer_the_page_says_that_everybody_may_do_everything():
    html = html_of(World().rules.rules_page(fields_of({})))
    assert "Every client may do everything" in html and "Create a rule" not in html


def test_names_are_text(world):
    add(world, AclBinding(ResourceType.GROUP, PatternType.LITERAL, HOSTILE, f"User:{HOSTILE}", "*",
                          Operation.READ, Permission.DENY))  # fmt: skip
    html = html_of(shown(world))
    assert "<script>alert" not in html and "may not" in html
    assert "\u202e" not in re.sub('<input type="hidden"[^>]*>', "", html), "only a form brings it back as it is"


def test_rules_and_users_are_for_who_may_describe_the_cluster():
    world = World(user="console", authorizer_class_name=STANDARD, super_users="User:root")
    for call in (lambda: shown(world), lambda: now(world.rules.users_page(fields_of({})))):
        with pytest.raises(MissingRight, match="--operation describe --cluster"):
            call()
    world.broker.services.authorizer.use(frozenset([allow("describe cluster", user="User:console")]))
    assert html_of(shown(world))
    with pytest.raises(MissingRight, match="--operation alter --cluster"):
        act(world, "create-rule", **RULE, confirmed="yes")


# --- the page of users -----------------------------------------------------------------------------------------------


def test_users_are_shown_with_mechanisms_and_iterations_and_no_secret(world):
    users.alter_users(world.client, [ScramUpsertion("ada", "SCRAM-SHA-512", "ada-secret", 8192)])
    users.alter_users(world.client, [ScramUpsertion("ada", "SCRAM-SHA-256", "ada-secret")])
    users.alter_users(world.client, [ScramUpsertion("bob", "SCRAM-SHA-256", "bob-secret")])
    html = html_of(now(world.rules.users_page(fields_of({}))))
    assert re.findall(r"<td>(SCRAM\S+)</td><td class=\"n\">(\S+)</td>", html) == [
        ("SCRAM-SHA-256", "4,096"), ("SCRAM-SHA-512", "8,192"), ("SCRAM-SHA-256", "4,096")
    ]  # fmt: skip
    (credential, *_) = world.broker.services.metadata.credentials.values()
    assert "secret" not in html and credential.stored_key.hex() not in html
    assert 'href="/console/rules?principal=User%3Aada"' in html
    assert [row.user for row in now(world.rules.users_page(fields_of({"search": "BO"}))).model.rows] == ["bob"]


def test_without_users_the_page_says_so(world):
    assert "No user has a password for SCRAM." in html_of(now(world.rules.users_page(fields_of({}))))


# --- actions ---------------------------------------------------------------------------------------------------------


def test_a_rule_is_created_once_it_is_confirmed(world):
    plan = html_of(act(world, "create-rule", **RULE))
    assert f"From then on, {WORDS}." in plan and rules_of(world) == set()
    hidden = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', plan))
    hidden.pop("csrf")
    done = act(world, "create-rule", **hidden)
    assert "The rule was created" in done.model.sentence and done.model.target == "/console/rules"
    assert rules_of(world) == {allow("read topic orders")}
    added, request = world.broker.reported[-2:]
    assert added.endswith("added an access rule: User:ada is allowed to READ Topic orders from host *")
    assert request.startswith("console: 127.0.0.1:5 asked for create-rule (kind='topic', name='orders'")


@pytest.mark.parametrize(
    "more, warning",
    [
        ({"permission": "deny"}, "A rule that denies comes before all rules that allow."),
        ({"principal": "User:*"}, "User:* is every client, those without a login too."),
        ({"name": "*"}, "The name * stands for all, those that are made later too."),
    ],
)
def test_a_plan_warns_of_what_a_visitor_may_not_expect(world, more, warning):
    assert act(world, "create-rule", **RULE | more).model["planned"].warning == warning


@pytest.mark.parametrize(
    "more, wrong",
    [
        ({"kind": "broker"}, "'broker' is no kind of resource; give topic, group, cluster"),
        ({"name": " "}, "name the topic, or give \\* for all"),
        ({"principal": ""}, "name the principal, as in User:ada"),
        ({"principal": ":ada"}, "expected a string in format principalType:principalName but got :ada"),
        ({"operation": "eat"}, "'eat' is no operation; give read, write, create"),
        ({"operation": "cluster-action"}, "there is no cluster-action on a topic; there are all, read, write, create"),
        ({"pattern": "regex"}, "'regex' is no pattern; give literal, prefixed"),
        ({"permission": "maybe"}, "'maybe' is no permission; give allow, deny"),
    ],
)
def test_a_rule_that_cannot_be_is_refused_with_what_would_be_right(world, more, wrong):
    for confirmed in ({}, {"confirmed": "yes"}):
        with pytest.raises(BadField, match=wrong):
            act(world, "create-rule", **RULE | more | confirmed)
    form = html_of(world.actions.refused(fields_of(RULE | {"name": HOSTILE}), "create-rule", 400, "no"))
    assert 'value="User:ada"' in form and "<script>alert" not in form and rules_of(world) == set()


@pytest.mark.parametrize(
    "rule, words",
    [
        (allow("all topic *"), "User:ada has all rights on topic *, from all hosts"),
        (allow("write topic ord...", Permission.DENY), "User:ada is denied the right write on topics that begin"),
        (allow("alter cluster")._replace(host="192.0.2.7"), "the right alter on the cluster, from host 192.0.2.7"),
        (allow("write transactional_id tx"), "the right write on transactional id tx"),
    ],
)
def test_a_rule_is_told_in_words(rule, words):
    assert words in sentence_of(rule)


def test_a_name_without_a_type_is_a_user_and_the_cluster_needs_no_name(world):
    cluster = {"kind": "cluster", "principal": "ada", "operation": "describe", "host": "192.0.2.7"}
    act(world, "create-rule", **cluster, confirmed="yes")
    assert rules_of(world) == {allow("describe cluster")._replace(host="192.0.2.7")}


def test_a_rule_that_is_there_is_not_created_again(world):
    add(world, allow("read topic orders"))
    with pytest.raises(BadField, match="there is such a rule already"):
        act(world, "create-rule", **RULE)


def test_a_rule_is_deleted_by_its_row_and_no_other_is(world):
    others = allow("read topic ord..."), allow("write topic orders"), allow("read topic orders", Permission.DENY)
    add(world, allow("read topic orders"), *others)
    rows = re.findall(r'action="/console/do/delete-rule">(.*?)<button', html_of(shown(world)))
    given = [dict(re.findall(r'name="(\w+)" value="([^"]*)"', row)) for row in rows]
    wanted = RULE | {"pattern": "literal", "permission": "allow", "host": "*"}
    (fields,) = [row for row in given if {name: row[name] for name in wanted} == wanted]
    fields.pop("csrf")
    plan = html_of(act(world, "delete-rule", **fields))
    assert f"Delete the rule by which {WORDS}." in plan and len(rules_of(world)) == 4
    act(world, "delete-rule", **fields, confirmed="yes")
    assert rules_of(world) == set(others)
    with pytest.raises(BadField, match="there is no such rule; it may have been deleted meanwhile"):
        act(world, "delete-rule", **fields, confirmed="yes")


def test_a_rule_for_a_name_with_spaces_is_deleted_and_not_that_of_the_name_without(world):
    """Kafka takes such names of groups. In a rule to create, the spaces are those of a visitor's typing."""
    spaced, plain = AclBinding(*allow("read group  billing")), allow("read group billing")
    spaced = spaced._replace(name=" billing")
    add(world, spaced, plain)
    fields = RULE | {"kind": "group", "name": " billing", "pattern": "literal", "permission": "allow", "host": "*"}
    act(world, "delete-rule", **fields, confirmed="yes")
    assert rules_of(world) == {plain}


def test_to_delete_a_rule_that_denies_is_warned_of(world):
    add(world, allow("read topic orders", Permission.DENY))
    planned = act(world, "delete-rule", **RULE, permission="deny").model["planned"]
    assert planned.warning.startswith("What it denies is allowed then, if another rule allows it.")


def test_without_an_authorizer_an_action_says_what_is_missing():
    with pytest.raises(BrokerError, match="SECURITY_DISABLED"):
        act(World(), "create-rule", **RULE)
