"""The pages of access rules and users in a real browser, with a server that has an authorizer."""

import re

import pytest

from broker.client.blocking import Client
from flakelog import Admin, ScramUpsertion
from tests.broker.handlers.rights_client import allow
from tests.compat.console.browser_checks import CHROMIUM, CONTRAST, OVERFLOW, picture
from tests.compat.server_process import ServerProcess

if not CHROMIUM.exists():
    pytest.skip(f"no browser at {CHROMIUM}: the console is not tested in one", allow_module_level=True)
pytest.importorskip("playwright.sync_api", reason="no Playwright: the console is not tested in a browser")

STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
TOKEN = "correct horse battery"
CONSOLE = "User:console"
PAGES = ("rules", "rules?principal=User:nobody", "users", "do/set-password?user=ada", "do/create-rule?kind=topic")
PAGES += ("quotas", "topics/secret")
RULES = [
    allow("alter cluster", user=CONSOLE), allow("describe cluster", user=CONSOLE), allow("read topic orders"),
    allow("write topic ord...", user="User:CN=order-service,OU=shops,O=Example"), allow("read group readers"),
    allow("read topic *", user="User:bob"),
]  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    settings = {
        "authorizer.class.name": STANDARD,
        "super.users": "User:ANONYMOUS",
        "flakelog.console.token": TOKEN,
        "flakelog.console.principal": CONSOLE,
    }
    with ServerProcess(tmp_path_factory.mktemp("rules") / "data", settings) as running:
        with Client(running.address) as client:
            client.create_topic("secret", 1)
        with Admin(running.address) as admin:
            admin.create_acls(RULES)
            admin.alter_user_scram_credentials([ScramUpsertion("ada", "SCRAM-SHA-512", "x", 8192)])
            admin.alter_user_scram_credentials([ScramUpsertion("ada", "SCRAM-SHA-256", "x")])
            admin.alter_user_scram_credentials([ScramUpsertion("bob", "SCRAM-SHA-256", "x")])
        yield running


@pytest.fixture
def page(open_page, allowed):
    allowed.append("403")  # pages that lack a right are among these
    page = open_page("/console/rules")
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url("**/console/rules")
    return page


def test_the_pages_work_wide_and_light_and_at_320_pixels_and_dark(page):
    """No page is wider than the window, each has one heading, and all text has the contrast of WCAG AA."""
    base = re.match(r"http://[^/]+", page.url)[0]
    for path in PAGES:
        page.goto(f"{base}/console/{path}")
        assert page.locator("h1").count() == 1 and page.locator("main").count() == 1, path
        for width, scheme in ((1280, "light"), (320, "dark")):
            page.set_viewport_size({"width": width, "height": 800})
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate(OVERFLOW)[0] <= 0, f"{path} is wider than {width}"
            assert page.evaluate(CONTRAST) == [], f"{path} in {scheme}"
            if (path, width) == ("rules", 1280):
                picture(page, "rules")


def test_a_rule_is_created_found_and_deleted(page, server):
    page.get_by_role("link", name="Create a rule").click()
    page.get_by_label("Principal").fill("ada")
    page.get_by_label("Operation").select_option("write")
    page.get_by_label("Its name").fill("pay")
    page.get_by_label("The name is").select_option("prefixed")
    page.get_by_role("button", name="Create…").click()
    assert "User:ada has the right write on topics that begin with pay" in page.locator("main").inner_text()
    page.get_by_role("button", name="Create it").click()
    page.get_by_role("heading", name="Done").wait_for()
    page.goto(f"http://{server.http}/console/rules?name=payments&kind=topic")
    rows = page.get_by_role("table").get_by_role("row")
    assert rows.count() == 3, "that of the prefix, and that of all topics"
    page.get_by_role("button", name="Delete the rule of User:ada on pay").click()
    page.get_by_role("button", name="Delete it").click()
    page.get_by_role("heading", name="Done").wait_for()
    with Admin(server.address) as admin:
        assert admin.describe_acls() == sorted(RULES)


def test_a_page_without_a_right_says_which_one_is_missing(page, server):
    page.goto(f"http://{server.http}/console/topics/secret")
    text = page.locator("main").inner_text()
    assert "the console acts as User:console, which lacks the right describe on topic secret" in text
    assert "flakelog acl add --allow User:console --operation describe --topic secret" in text


@pytest.mark.parametrize("path", ["rules", "users", "do/create-rule"])
def test_the_pages_work_without_their_script(open_page, path):
    page = open_page("/console/rules", script=False)
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Log in").click()
    page.goto(page.url.partition("/console")[0] + f"/console/{path}")
    assert page.locator("h1").is_visible()


def test_a_password_is_set_and_its_user_deleted(page, server):
    page.goto(page.url.replace("/rules", "/users"))
    page.get_by_role("link", name="Set a password").click()
    page.get_by_label("User").fill("cy")
    page.get_by_role("button", name="Go on…").click()
    page.get_by_label("Password", exact=True).fill("cy-secret")
    page.get_by_label("The same password again").fill("cy-secret")
    page.set_viewport_size({"width": 320, "height": 800})
    assert page.evaluate(OVERFLOW)[0] <= 0 and page.evaluate(CONTRAST) == []
    page.get_by_role("button", name="Set it").click()
    page.get_by_role("heading", name="Done").wait_for()
    assert "cy has a new password for SCRAM-SHA-512." in page.locator("main").inner_text()
    assert "secret" not in page.url + page.content()
    page.get_by_role("link", name="Show it").click()
    page.get_by_role("button", name="Delete the user cy").click()
    page.get_by_role("button", name="Delete it").click()
    page.get_by_role("heading", name="Done").wait_for()
    assert "The user cy was deleted" in page.locator("main").inner_text()
    assert "cy-secret" not in server.log
