"""Each fenced block of the README and of the pages in docs/ runs, and each program in examples/, as for a reader."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from broker.client.blocking import Client
from broker.record.records import BatchRecord, encode_batch
from tests.compat.documents import Tour, blocks_of
from tests.patience import PROGRAM_SECONDS, SECONDS

ROOT = Path(__file__).resolve().parents[3]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
BLOCKS = [(page, block) for page in PAGES for block in blocks_of(page)]


@pytest.fixture(scope="module")
def tour(request, tmp_path_factory):
    """The reader of one page."""
    tour = Tour(tmp_path_factory.mktemp(f"reader-of-{request.param.stem}"))
    yield tour
    tour.close()


@pytest.mark.parametrize(
    "tour, block",
    BLOCKS,
    ids=[f"{page.stem}-line-{block.line}-{block.language}" for page, block in BLOCKS],
    indirect=["tour"],
    scope="module",
)
def test_a_page_shows_what_happens(tour, block):
    """The blocks of a page run in order."""
    tour.do(block)


def example(name, *arguments):
    return [sys.executable, str(ROOT / "examples" / name), *map(str, arguments)]


def printed_by(command, cwd):
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=PROGRAM_SECONDS)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_each_example_is_run_here():
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == {
        "ids_in_process.py",
        "produce_and_consume.py",
        "count_words.py",
        "replay_with_spark.py",
    }


def test_example_ids_in_process(tmp_path):
    assert "the ids of that minute: 2006696907371446272 <= id < 2006697159029686272" in printed_by(
        example("ids_in_process.py"), tmp_path
    )


def test_example_produce_and_consume(broker, tmp_path):
    printed = printed_by(example("produce_and_consume.py", broker.address), tmp_path)
    assert printed.startswith("a stock consumer read 10 messages\n0 ")


def test_example_replay_with_spark(broker, tmp_path):
    printed = printed_by(example("replay_with_spark.py", broker.address, "example-orders"), tmp_path)
    assert printed.splitlines() == ["phone 333", "shop 333", "web 334", "1000 orders in the replay"]


class CountWords:
    """The count_words example as a process. `until` reads its output up to a line and then sends it a signal."""

    def __init__(self, command, **options):
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)

    def until(self, line, how):
        seen = next((each for each in self.process.stdout if each.strip() == line), None)
        self.process.send_signal(how)
        self.process.communicate(timeout=SECONDS)
        assert seen is not None, f"{line!r} never came"
        return self.process.returncode


def test_example_count_words_goes_on_where_it_was_killed_also_as_a_command(broker, tmp_path):
    def say(*lines):
        records = [BatchRecord(n, 0, None, line) for n, line in enumerate(lines)]
        client.produce("lines", 0, encode_batch(records, base_timestamp_ms=0))

    with Client(broker.address) as client:
        client.create_topic("lines")
        say(b"the quick fox", b"the dog")
        program = example("count_words.py", broker.address, "lines", tmp_path / "count-words")
        CountWords(program).until("5 words", signal.SIGKILL)
        say(b"over")
        name = f"{ROOT / 'examples' / 'count_words.py'}:count_words"
        command = [sys.executable, "-m", "flakelog", "spout", "run", name]
        env = os.environ | {"FLAKELOG_SERVERS": broker.address}
        assert CountWords(command, cwd=tmp_path, env=env).until("6 words", signal.SIGINT) == 0
