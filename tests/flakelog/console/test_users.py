"""The actions of the console that set a password of a user, and delete a user (KIP-554)."""

import re

import pytest

from broker.client.errors import BrokerError
from broker.security.sasl.scram_keys import PASSWORD_BYTES_MAX, keys_of, salted
from flakelog.console.access import MissingRight
from flakelog.console.visit import BadField
from flakelog.operations import users
from flakelog.operations.errors import NotPossible
from flakelog.operations.users import ScramUpsertion
from tests.broker.handlers.rights_client import STANDARD, allow
from tests.flakelog.console.world import World, fields_of, html_of, now

HOSTILE = '"><script>alert(1)</script>\u202e'
SHA_256, SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
ADA = {"user": "ada", "mechanism": SHA_512}
SECRET = "ada-secret"
TWICE = {"password": SECRET, "repeated": SECRET, "confirmed": "yes"}


@pytest.fixture
def world():
    return World()


def act(world, action, **fields):
    return now(world.actions.act(fields_of(fields), action, "127.0.0.1:5"))


def give(world, user, *mechanisms):
    for mechanism in mechanisms:
        users.alter_users(world.client, [ScramUpsertion(user, mechanism, SECRET)])


def described(world):
    return {credentials.user: credentials.iterations for credentials in users.list_users(world.client)}


def hidden_of(html):
    return dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', html))


def test_a_password_is_set_once_it_is_confirmed_and_checks_a_login(world):
    plan = html_of(act(world, "set-password", **ADA, iterations="8192"))
    assert "Give the new user ada a password for SCRAM-SHA-512." in plan and described(world) == {}
    hidden = hidden_of(plan)
    hidden.pop("csrf")
    done = act(world, "set-password", **hidden | TWICE)
    assert (done.model.sentence, done.model.target) == ("ada has a new password for SCRAM-SHA-512.", "/console/users")
    assert described(world) == {"ada": {SHA_512: 8192}}
    (credential,) = world.broker.services.metadata.credentials.values()
    keys = keys_of(salted(SECRET, credential.salt, 8192, SHA_512), SHA_512)
    assert (credential.stored_key, credential.server_key) == keys


def test_no_page_no_log_and_no_error_has_the_password(world):
    plan = html_of(act(world, "set-password", **ADA | TWICE | {"confirmed": ""}))
    assert plan.count('type="password"') == 2 and SECRET not in plan
    with pytest.raises(BadField) as wrong:
        act(world, "set-password", **ADA | TWICE | {"repeated": "other"})
    assert SECRET not in html_of(world.actions.form_page(fields_of(ADA | TWICE), "set-password"))
    form = html_of(world.actions.refused(fields_of(ADA | TWICE), "set-password", 400, str(wrong.value)))
    assert "the two passwords differ" in form and SECRET not in form and 'value="ada"' in form
    done = html_of(act(world, "set-password", **ADA | TWICE))
    assert SECRET not in done + "".join(world.broker.reported)
    assert world.broker.reported[-1].startswith("console: 127.0.0.1:5 asked for set-password (user='ada', mechanism=")


def test_the_page_that_asks_for_a_password_warns_if_the_network_can_read_it(world):
    for is_in_plain_text in (True, False):
        plan = now(world.actions.act(fields_of(ADA), "set-password", "10.0.0.7:5", is_in_plain_text=is_in_plain_text))
        assert ("can read the password" in html_of(plan)) is is_in_plain_text
    give(world, "ada", SHA_512)
    deletion = now(world.actions.act(fields_of(ADA), "delete-user", "10.0.0.7:5", is_in_plain_text=True))
    assert "can read the password" not in html_of(deletion)


def test_a_plan_says_that_a_password_is_replaced(world):
    give(world, "ada", SHA_512)
    planned = act(world, "set-password", **ADA, iterations="5000").model["planned"]
    assert planned.sentence == "Replace the password of ada for SCRAM-SHA-512."
    assert planned.rows == [[SHA_512, "4096", "5000"]]
    assert planned.warning.startswith("The former password lets nobody log in from then on.")
    another = act(world, "set-password", user="ada", mechanism=SHA_256).model["planned"]
    assert another.sentence == "Give ada a password for SCRAM-SHA-256."


@pytest.mark.parametrize(
    "more, wrong",
    [
        ({"user": ""}, "name the user"),
        ({"user": "a\0da"}, "user is no UTF-8 text without NULs\\Z"),
        ({"user": " ada"}, "begins or ends with a space; `flakelog user set` takes such names"),
        ({"mechanism": "PLAIN"}, "'PLAIN' is no mechanism of SCRAM; give SCRAM-SHA-256 or SCRAM-SHA-512"),
        ({"iterations": "10"}, "Too few iterations; 4096 to 16384 are taken"),
        ({"iterations": "99999"}, "Too many iterations"),
        ({"iterations": "many"}, "iterations is 'many'; give a number"),
    ],
)
def test_a_password_that_cannot_be_set_is_refused_with_what_would_be_right(world, more, wrong):
    for confirmed in ({}, TWICE):
        with pytest.raises(BadField, match=wrong):
            act(world, "set-password", **ADA | more | confirmed)
    assert described(world) == {}


def test_an_empty_password_is_refused(world):
    with pytest.raises(BadField, match="give the password when you confirm"):
        act(world, "set-password", **ADA, confirmed="yes")


def test_a_long_password_is_taken_whole_or_refused(world):
    """A browser cuts what is pasted into a field at the field's `maxlength`, in silence."""
    plan = html_of(act(world, "set-password", **ADA))
    assert all("maxlength" not in field for field in re.findall(r'<input type="password"[^>]*>', plan))
    longest = "ä" * (PASSWORD_BYTES_MAX // 2)
    act(world, "set-password", **ADA, password=longest, repeated=longest, confirmed="yes")
    (credential,) = world.broker.services.metadata.credentials.values()
    assert credential.stored_key == keys_of(salted(longest, credential.salt, 4096, SHA_512), SHA_512).stored_key
    with pytest.raises(BadField, match="the password is longer than 16,384 bytes"):
        act(world, "set-password", **ADA, password=longest + "a", repeated=longest + "a", confirmed="yes")


def test_a_user_is_deleted_with_the_passwords_that_the_plan_has_shown(world):
    give(world, "ada", SHA_256, SHA_512)
    give(world, "bob", SHA_256)
    html = html_of(now(world.rules.users_page(fields_of({}))))
    (ada, bob) = re.findall(r'action="/console/do/delete-user">(.*?)<button', html)
    fields = hidden_of(ada)
    fields.pop("csrf")
    plan = html_of(act(world, "delete-user", **fields))
    assert "Delete the user ada." in plan and "Access rules of User:ada stay too." in plan
    assert set(described(world)) == {"ada", "bob"}
    hidden = hidden_of(plan)
    hidden.pop("csrf")
    assert hidden["mechanisms"] == f"{SHA_256},{SHA_512}"
    act(world, "delete-user", **hidden)
    assert described(world) == {"bob": {SHA_256: 4096}}
    with pytest.raises(NotPossible, match="user ada has no password for SCRAM-SHA-256 or SCRAM-SHA-512"):
        act(world, "delete-user", **hidden)


def confirmed(world, action, **fields):
    """Return the fields that the confirmation of a plan sends."""
    hidden = hidden_of(html_of(act(world, action, **fields)))
    hidden.pop("csrf")
    return hidden


def test_a_user_that_got_another_password_since_the_plan_is_not_said_to_be_deleted(world):
    give(world, "ada", SHA_256)
    hidden = confirmed(world, "delete-user", user="ada")
    give(world, "ada", SHA_512)
    with pytest.raises(NotPossible, match="ada has got a password for SCRAM-SHA-512 meanwhile; begin again"):
        act(world, "delete-user", **hidden)
    assert set(described(world)["ada"]) == {SHA_256, SHA_512}


def test_a_password_that_another_sets_after_the_plan_is_not_replaced(world):
    hidden = confirmed(world, "set-password", **ADA)
    users.alter_users(world.client, [ScramUpsertion("ada", SHA_512, SECRET, 8192)])
    with pytest.raises(NotPossible, match="the password of ada for SCRAM-SHA-512 was set or deleted meanwhile"):
        act(world, "set-password", **hidden | TWICE)
    assert described(world) == {"ada": {SHA_512: 8192}}
    act(world, "set-password", **confirmed(world, "set-password", **ADA) | TWICE)
    assert described(world) == {"ada": {SHA_512: 4096}}


def test_a_row_leads_to_the_form_of_its_password(world):
    give(world, "ada", SHA_512)
    html = html_of(now(world.rules.users_page(fields_of({}))))
    assert 'href="/console/do/set-password?user=ada&mechanism=SCRAM-SHA-512&iterations=4096"' in html
    form = html_of(world.actions.form_page(fields_of(ADA | {"iterations": "4096"}), "set-password"))
    assert 'value="ada"' in form and '<option value="SCRAM-SHA-512" selected>' in form


def test_a_name_that_browsers_would_change_has_no_buttons_but_the_name_of_the_command(world):
    """A browser drops the line breaks of a text field, and sends CR LF for each of a hidden one."""
    give(world, "a\nb", SHA_512)
    html = html_of(now(world.rules.users_page(fields_of({}))))
    assert "/console/do/set-password?user" not in html and "/console/do/delete-user" not in html
    assert "The name has control characters: <code>flakelog user set</code>" in html
    for action in ("set-password", "delete-user"):
        with pytest.raises(BadField, match="the name has control characters; `flakelog user set` and `delete` take"):
            act(world, action, **ADA | {"user": "a\r\nb"})


def test_a_name_is_text(world):
    give(world, HOSTILE, SHA_512)
    pages = now(world.rules.users_page(fields_of({}))), act(world, "delete-user", user=HOSTILE)
    assert all("<script>alert" not in html_of(view) for view in pages)


def test_a_password_needs_the_right_to_alter_the_cluster_and_its_plan_that_to_describe_it():
    world = World(user="console", authorizer_class_name=STANDARD, super_users="User:root")

    def may(*verbs):
        rules = frozenset(allow(f"{verb} cluster", user="User:console") for verb in verbs)
        world.broker.services.authorizer.use(rules)

    for action in ("set-password", "delete-user"):
        with pytest.raises(MissingRight, match="--operation describe --cluster"):
            act(world, action, **ADA)
    may("describe")
    with pytest.raises(MissingRight, match="--operation alter --cluster"):
        act(world, "set-password", **ADA | TWICE)
    may("describe", "alter")
    act(world, "set-password", **ADA | TWICE)
    may("describe")
    with pytest.raises(MissingRight, match="--operation alter --cluster"):
        act(world, "delete-user", user="ada", confirmed="yes")
    assert described(world) == {"ada": {SHA_512: 4096}}


def test_a_user_that_another_deletes_meanwhile_is_named(world):
    """A deletion that comes after the list was read is refused by the broker, as Kafka does."""
    give(world, "ada", SHA_512)
    present = users.credentials_to_delete(world.client, "ada")
    users.delete_user(world.client, present)
    with pytest.raises(BrokerError, match="user ada: RESOURCE_NOT_FOUND"):
        users.delete_user(world.client, present)
