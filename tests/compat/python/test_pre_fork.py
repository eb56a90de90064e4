"""Programs that load before they fork: 4 children share no id (the most reported bug of Python's libraries)."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.compat.server_process import ROOT, ServerProcess
from tests.patience import SECONDS, until

# A typical web application: it makes its objects when its module is loaded. With --preload that happens before the
# fork. /own makes a Snowflake after the fork, /inherited uses the parent's, and /client asks an id service.
APPLICATION = """
import json, os
from flakelog import IdClient, Snowflake
from idgen.errors import Fenced

inherited = Snowflake(directory=os.environ["IDS"])
inherited.next_id()
client = IdClient(os.environ["FLAKELOG_IDS"], prefetch=1_000, timeout_ms=60_000)
client.get_id()
own = None

def application(environ, start_response):
    global own
    path = environ["PATH_INFO"]
    try:
        if path == "/own":
            own = own or Snowflake(directory=os.environ["IDS"])
            ids = own.next_ids(1_000)
        elif path == "/client":
            ids = [client.get_id() for _ in range(200)]
        else:
            ids = inherited.next_ids(1_000)
        body, status = {"pid": os.getpid(), "ids": ids}, "200 OK"
    except Fenced as error:
        body, status = {"pid": os.getpid(), "error": str(error)}, "503 Service Unavailable"
    start_response(status, [("Content-Type", "application/json")])
    return [json.dumps(body).encode()]
"""

# A pre-fork task worker: it loads its tasks, forks its pool and hands out tasks.
POOL = """
import json, multiprocessing, os, sys
from idgen.errors import Fenced
from idgen.snowflake import Snowflake

inherited = Snowflake(directory=sys.argv[1])
first = inherited.next_id()
own = None

def task(_):
    global own
    try:
        return inherited.next_ids(1_000)
    except Fenced as error:
        assert "make a Snowflake" in str(error)
        own = own or Snowflake(directory=sys.argv[1])
        return own.next_ids(1_000)

with multiprocessing.get_context("fork").Pool(4) as pool:
    ids = [id for some in pool.map(task, range(40), chunksize=1) for id in some]
    ids += inherited.next_ids(1_000) + [first]
    pool.close()
    pool.join()
print(json.dumps(ids))
"""

# A server that forks in C and runs none of Python's fork hooks, as uWSGI does by default.
FORKS_IN_C = """
import ctypes, json, os, sys
from idgen.client.blocking import IdClient
from idgen.errors import Fenced
from idgen.snowflake import Snowflake

inherited = Snowflake(directory=sys.argv[1])
client = IdClient(sys.argv[2], prefetch=1_000, timeout_ms=60_000)
ids = [inherited.next_id(), client.get_id()]

def serve():
    for call in (inherited.next_id, lambda: inherited.next_ids(10)):
        try:
            call()
            return []
        except Fenced as error:
            assert "make a Snowflake" in str(error)
    inherited.close()
    own = Snowflake(directory=sys.argv[1])
    return own.next_ids(1_000) + [client.get_id() for _ in range(1_500)]

readers = []
for _ in range(4):
    reader, writer = os.pipe()
    if ctypes.PyDLL(None).fork() == 0:
        os.close(reader)
        with open(writer, "w") as out:
            json.dump(serve(), out)
        os._exit(0)
    os.close(writer)
    readers.append(reader)
for _ in range(1_000):
    ids += [inherited.next_id(), client.get_id()]
for reader in readers:
    with open(reader) as given:
        ids += json.load(given)
print(json.dumps(ids))
"""


def ask(port, path):
    """Return (status, body). Any worker may take each connection."""
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=SECONDS) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        return error.code, json.load(error)


def ask_every_worker(port, path, workers=4):
    """Ask until each worker has answered, and return all answers."""
    answers = []

    def have_all_answered():
        with ThreadPoolExecutor(2 * workers) as askers:  # concurrently, so that no worker takes all
            answers.extend(askers.map(lambda _: ask(port, path), range(2 * workers)))
        return len({body["pid"] for _, body in answers}) == workers

    until(have_all_answered, "an answer of each worker")
    return answers


@pytest.fixture
def gunicorn(tmp_path):
    """Run a preloading gunicorn with 4 workers and an id service, and yield gunicorn's port."""
    pytest.importorskip("gunicorn", reason="no gunicorn: a preloading web server is not tested")
    (tmp_path / "shop.py").write_text(APPLICATION)
    options = ["--preload", "--workers", "4", "--timeout", "0", "--bind", "127.0.0.1:0", "--pythonpath", str(tmp_path)]
    with ServerProcess(tmp_path / "data", command="idgen") as ids:
        process = subprocess.Popen(
            [sys.executable, "-m", "gunicorn", *options, "shop:application"],
            env={"PYTHONPATH": str(ROOT), "IDS": str(tmp_path / "ids"), "FLAKELOG_IDS": ids.ids},
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            line = next(line for line in process.stderr if "Listening at" in line)
            yield int(line.split("Listening at: http://127.0.0.1:")[1].split()[0])
        finally:
            process.terminate()
            process.communicate(timeout=SECONDS)


def test_a_preloading_web_servers_workers_share_no_id(gunicorn):
    ids = []
    for path in ("/own", "/client"):
        for status, body in ask_every_worker(gunicorn, path):
            assert status == 200
            ids += body["ids"]
    assert len(set(ids)) == len(ids) >= 4_800
    for status, body in ask_every_worker(gunicorn, "/inherited"):
        assert (status, "make a Snowflake" in body["error"]) == (503, True)


def test_a_pre_fork_task_workers_children_share_no_id(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", POOL, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, done.stderr
    ids = json.loads(done.stdout)
    assert len(ids) == len(set(ids)) == 41_001


def test_children_of_a_server_that_forks_in_c_share_no_id(tmp_path):
    """Children that run none of Python's fork hooks share no id.

    The service and the program share a registry, so all ids are compared.
    """
    with ServerProcess(tmp_path / "data", command="idgen") as server:
        done = subprocess.run(
            [sys.executable, "-c", FORKS_IN_C, str(tmp_path / "data" / "ids"), server.ids],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    assert done.returncode == 0, done.stderr
    ids = json.loads(done.stdout)
    assert len(ids) == len(set(ids)) == 2 + 2_000 + 4 * 2_500
