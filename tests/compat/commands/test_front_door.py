"""The whole as a new user meets it: the wheel in a fresh environment, README, tutorial, web console, wrong inputs.

The user has a shell, an empty directory and Python. No checkout is on the path, and no package that only tests need.
"""

import re
import signal
import subprocess
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.compat.clean_environment import ROOT, clean, clean_environment, run
from tests.compat.commands.test_wrong_inputs import WRONG, assert_one_clear_line, at, make_place
from tests.compat.documents import Tour, blocks_of
from tests.compat.server_process import FREE_PORTS
from tests.patience import MS, SECONDS

CHROMIUM = Path("/usr/bin/chromium")
SOON_SECONDS = 30  # a command waits less than 5 s; a busy machine takes longer to start Python


@pytest.fixture(scope="module")
def plain(plain_python):
    """The programs of `pip install flakelog`."""
    return plain_python.parent


@pytest.fixture(scope="module")
def full(wheel, tmp_path_factory):
    """The programs of `pip install 'flakelog[all]'`, and pytest, with which the tutorial tests its topology."""
    return clean_environment(tmp_path_factory.mktemp("full"), wheel, ("all",), ("pytest",)).parent


class User(Tour):
    """A reader of documents whose only Flakelog is the installed one."""

    def __init__(self, directory, bin):
        super().__init__(directory, bin)
        self.env.pop("PYTHONPATH", None)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def read(self, page):
        for block in blocks_of(page):
            self.do(block)


def test_flakelog_is_the_installed_one(plain, tmp_path):
    where = run(plain / "python", "-c", "import flakelog; print(flakelog.__file__)", cwd=tmp_path)
    assert where.startswith(str(plain.parent)), where
    assert run(plain / "flakelog", "--version", cwd=tmp_path).startswith("flakelog")


def test_the_readme_holds_for_a_plain_installation(plain, tmp_path):
    with User(tmp_path, plain) as user:
        user.read(ROOT / "README.md")


@pytest.mark.soak
def test_the_tutorial_holds_for_a_full_installation(full, tmp_path):
    with User(tmp_path, full) as user:
        user.read(ROOT / "docs" / "tutorial.md")


@pytest.mark.soak
def test_the_demo_holds_for_a_full_installation(full, tmp_path):
    last = run(full / "flakelog", "demo", "--flights", "12000", cwd=tmp_path, timeout=4 * SECONDS).splitlines()[-1]
    assert last.startswith("replay agrees:")


@contextmanager
def serving(bin, directory):
    """Run the server of an installation, and yield its addresses by name."""
    settings = [f"--set={name}={value}" for name, value in FREE_PORTS.items()]
    command = [bin / "flakelog", "server", "--data-dir", "data", *settings]
    server = subprocess.Popen(command, cwd=directory, env=clean(), stdout=subprocess.PIPE, text=True)
    try:
        words = (word.partition("=") for word in server.stdout.readline().split())
        yield {name: address for name, _, address in words}
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(SECONDS) == 0


def test_the_console_of_an_installation_has_its_pages_and_their_files(plain, tmp_path):
    with serving(plain, tmp_path) as addresses:
        address = addresses["console"].rstrip("/")
        for path in ("/", "/console/topics", "/console/groups", "/console/ids"):
            page = ask(address + path)
            assert "<title>" in page and "Flakelog" in page
            for file in set(re.findall(r'(?:src|href)="(/[^"]*\.(?:js|css|svg|ico))', page)):
                assert ask(address + file), file


@pytest.mark.soak
def test_a_person_uses_the_console_of_an_installation_in_a_browser(plain, tmp_path):
    """Creates a topic, sees a message that the command line sent, and finds it by its id."""
    if not CHROMIUM.exists():
        pytest.skip(f"no browser at {CHROMIUM}: the console is walked through by HTTP only")
    playwright = pytest.importorskip("playwright.sync_api", reason="no Playwright: no browser to walk through")
    errors = []
    with serving(plain, tmp_path) as addresses, playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(MS)
        page.on("console", lambda each: errors.append(each.text) if each.type in ("error", "warning") else None)
        page.on("pageerror", lambda each: errors.append(str(each)))
        page.goto(addresses["console"])
        page.get_by_role("link", name="Topics").first.click()
        page.get_by_role("link", name="Create a topic").click()
        page.get_by_label("Name").fill("greetings")
        page.get_by_role("button", name="Create…").click()
        page.get_by_role("button", name="Create it").click()
        produce = (plain / "flakelog", "produce", "greetings", "--show-ids", "--servers", addresses["broker"])
        id = run(*produce, cwd=tmp_path, input="hello\n").split()[2]
        page.goto(addresses["console"] + f"console/ids?id={id}")
        page.get_by_role("link", name="Find its message").click()
        assert page.locator("h1").inner_text() == "Offset 0" and "hello" in page.locator("main").inner_text()
        browser.close()
    assert not errors


def ask(address):
    with urlopen(address, timeout=SECONDS) as answer:
        return answer.read().decode()


@pytest.fixture(scope="module")
def served(full, tmp_path_factory):
    """The address of a server, which has a topic, and a directory for wrong paths."""
    with serving(full, tmp_path_factory.mktemp("served")) as addresses:
        run(full / "flakelog", "topic", "create", "wrong", "--partitions", "2", "--servers", addresses["broker"])
        yield addresses["broker"], make_place(tmp_path_factory.mktemp("wrong"))


@pytest.mark.soak
@pytest.mark.parametrize("command, code, said", WRONG, ids=[command for command, _, _ in WRONG])
def test_a_wrong_input_to_an_installation_gives_one_clear_line(full, served, tmp_path, command, code, said):
    """Each command runs in a process. A time limit ends one that waits too long."""
    servers, place = served
    words = [full / "flakelog", *at(place, command).split()]
    env = clean() | {"FLAKELOG_SERVERS": servers}
    done = subprocess.run(
        words, cwd=tmp_path, env=env, input="line\n", capture_output=True, text=True, timeout=SOON_SECONDS
    )
    assert_one_clear_line((done.returncode, done.stdout, done.stderr), code, said)
