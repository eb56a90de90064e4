"""The whole as a new user meets it: the wheel in a fresh environment, the README, the tutorial, the web console.

The user has a shell, an empty directory and Python. No checkout is on the path, and no package that only tests need.
"""

import re
import signal
import subprocess
from urllib.request import urlopen

import pytest

from tests.compat.clean_environment import ROOT, build, clean, clean_environment, run
from tests.compat.documents import Tour, blocks_of
from tests.compat.server_process import FREE_PORTS
from tests.patience import SECONDS


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    (wheel,) = build(tmp_path_factory.mktemp("build")).glob("flakelog-*.whl")
    return wheel


@pytest.fixture(scope="module")
def plain(wheel, tmp_path_factory):
    """The programs of `pip install flakelog`."""
    return clean_environment(tmp_path_factory.mktemp("plain"), wheel).parent


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


def test_the_console_of_an_installation_has_its_pages_and_their_files(plain, tmp_path):
    settings = [f"--set={name}={value}" for name, value in FREE_PORTS.items()]
    command = [plain / "flakelog", "server", "--data-dir", "data", *settings]
    server = subprocess.Popen(command, cwd=tmp_path, env=clean(), stdout=subprocess.PIPE, text=True)
    try:
        address = re.search(r"console=(http://[^/ ]+)/", server.stdout.readline())[1]
        for path in ("/", "/console/topics", "/console/groups", "/console/ids"):
            page = ask(address + path)
            assert "<title>" in page and "Flakelog" in page
            for file in set(re.findall(r'(?:src|href)="(/[^"]*\.(?:js|css|svg|ico))', page)):
                assert ask(address + file), file
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(SECONDS) == 0


def ask(address):
    with urlopen(address, timeout=SECONDS) as answer:
        return answer.read().decode()
