"""The command line's own logic: places, times, tables, lines."""

import io
import os
import subprocess
import sys
from importlib.metadata import version

import click
import pytest
from click.testing import CliRunner

from broker.client.address import parse_addresses
from broker.client.errors import BrokerError, CommitFailed, Unreachable
from broker.client.log_record import Record
from broker.version import VERSION
from flakelog.cli import COMMANDS, main
from flakelog.commands.delivery import Delivery
from flakelog.commands.exit_codes import Interrupted, NobodyAnswers, with_exit_codes
from flakelog.commands.produce import _by_partition
from flakelog.commands.produce_input import Framing, Line, Target, known_size, read_lines, unescape
from flakelog.commands.record_format import as_text, by_format
from flakelog.commands.terminal import client_of, confirm, count_of, describe_id, iso, print_table
from flakelog.operations.partitions import ask_in_portions
from idgen.layout import Layout

NOBODY = "127.0.0.1:1"  # no process listens on this port
NEW_YEAR_2013_MS = 1_356_998_400_000


def test_times_are_shown_in_utc_to_the_millisecond():
    """Times are shown as in RFC 3339."""
    assert iso(NEW_YEAR_2013_MS + 7) == "2013-01-01T00:00:00.007Z"
    assert iso(NEW_YEAR_2013_MS + 8) == "2013-01-01T00:00:00.008Z"


@pytest.mark.parametrize("time_ms", [None, -1, 1 << 60])
def test_a_time_no_calendar_has_is_shown_as_none(time_ms):
    """A time outside the calendar is None; -1 is the protocol's "no timestamp"."""
    assert iso(time_ms) is None


def test_an_id_is_described_with_the_http_services_names_and_as_a_string():
    """The id is also a string, because JavaScript's numbers hold 53 bits."""
    layout = Layout()
    described = describe_id(layout.pack(NEW_YEAR_2013_MS, 33, 5), layout)
    assert described["id_str"] == str(described["id"])
    assert described["time"] == "2013-01-01T00:00:00.000Z"
    assert (described["datacenter"], described["worker"], described["sequence"]) == (1, 1, 5)


def test_a_table_has_numbers_to_the_right_and_a_dash_for_nothing(capsys):
    print_table(("NAME", "SIZE"), [("a", 1), ("long-name", 20_000), ("b", None)])
    assert capsys.readouterr().out == "NAME        SIZE\na              1\nlong-name  20000\nb              -\n"


def test_numbers_are_told_with_their_noun():
    assert [count_of(number, "topic") for number in (0, 1, 2000)] == ["0 topics", "1 topic", "2,000 topics"]


def test_bytes_that_are_no_text_are_told_as_base64():
    assert as_text("value", b"caf\xc3\xa9") == {"value": "café"}
    assert as_text("value", b"\xff\x00") == {"value_base64": "/wA="}
    assert as_text("value", None) == {"value": None}


def test_a_format_has_kcats_tokens_and_the_id():
    """The tokens are those of kcat -f; a null has the length -1."""
    record = Record(7, 99, 1_000, b"k", b"val", (("a", b"1"), ("b", None)), 0, "orders", 2)
    print_record = by_format("%t [%p] %o %i %T %k/%K %s/%S %h 100%%\\t\\x41\\n")
    assert print_record(record) == b"orders [2] 7 99 1000 k/1 val/3 a=1,b=NULL 100%\tA\n"
    assert by_format("%R%s")(record) == b"\0\0\0\x03val"
    tombstone = record._replace(key=None, value=None, id=None)
    assert by_format("%k%K %s%S %i")(tombstone) == b"-1 -1 -"
    assert by_format("%k %s", b"NULL")(tombstone) == b"NULL NULL"


@pytest.mark.parametrize("wrong", ["%x", "100%", "%", "%s\\q"])
def test_an_unknown_token_of_a_format_is_refused(wrong):
    with pytest.raises(ValueError, match="no token of a format|unknown escape"):
        by_format(wrong)


class Chunks(io.BytesIO):
    """stdin as a pipe delivers it: in pieces of one size."""

    def __init__(self, data, size):
        super().__init__(data)
        self._size = size

    def read1(self, size=-1):
        return self.read(self._size)


def lines_of(data, size=1000, **framing):
    """Return the chunks of lines read from `data`, which comes in pieces of `size` bytes."""
    return read_lines([Chunks(data, size)], Framing(**framing), lambda read: None)


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_lines_are_whole_however_stdin_is_cut(size):
    values = [line.value for lines in lines_of(b"one\ntwo\r\n\nlast", size) for line in lines]
    assert values == [b"one", b"two", b"", b"last"]


def test_a_key_ends_at_the_first_separator():
    assert list(lines_of(b"a::b::c\n", key_separator=b"::")) == [[Line(b"a", b"b::c")]]


def test_a_delimiter_may_be_any_bytes():
    assert list(lines_of(b"a\r\n\0b\0", delimiter=b"\0")) == [[Line(None, b"a\r\n"), Line(None, b"b")]]


def test_empty_keys_and_values_are_null_where_that_is_asked_for():
    """kcat's option -Z does the same. A null value is a tombstone."""
    lines = lines_of(b"a:\n:b\n", key_separator=b":", nulls=True)
    assert list(lines) == [[Line(b"a", None), Line(None, b"b")]]


def test_escapes_are_single_bytes_and_unknown_ones_are_refused():
    assert unescape("a\\t\\x00\\\\é") == b"a\t\0\\" + "é".encode()
    for wrong in ("\\q", "\\", "\\x1", "\\xzz"):
        with pytest.raises(ValueError, match="unknown escape"):
            unescape(wrong)


def test_what_comes_before_a_line_without_its_separator_is_sent():
    chunks = lines_of(b"a:1\nb:2\nc\nd:4\n", key_separator=b":")
    assert next(chunks) == [Line(b"a", b"1"), Line(b"b", b"2")]
    with pytest.raises(click.ClickException, match="line 3 has no ':'"):
        next(chunks)


def test_equal_keys_go_to_the_partition_librdkafka_chooses():
    """librdkafka's `consistent_random` takes the key's CRC-32 modulo the partitions (rd_crc32 is zlib's)."""
    target = Target("t", 4, None, "none", [])
    assert _by_partition(target, [Line(b"123456789", b"v")], turn=0) == {0xCBF43926 % 4: [Line(b"123456789", b"v")]}


def test_lines_without_a_key_take_the_partitions_in_turns():
    target = Target("t", 3, None, "none", [])
    assert [list(_by_partition(target, [Line(None, b"v")], turn)) for turn in range(4)] == [[0], [1], [2], [0]]


def test_a_partition_asked_for_gets_everything():
    target = Target("t", 3, 2, "none", [])
    assert list(_by_partition(target, [Line(None, b"v"), Line(b"k", b"v")], turn=0)) == [2]


def test_a_bar_knows_the_size_of_regular_files_and_of_nothing_else(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b"12345678")
    with path.open("rb") as file, path.open("rb") as again:
        assert known_size([file, again]) == 16
        file.read(3)
        assert known_size([file]) == 5 and known_size([file, io.BytesIO(b"12")]) is None


def test_the_demo_names_the_extra_that_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    done = CliRunner().invoke(main, ["demo"])
    assert done.exit_code == 1
    assert done.output == "Error: the demo needs pandas; try: pip install 'flakelog[spark,demo]'\n"


def commands_of(command, path):
    yield path, command
    for name in getattr(command, "commands", ()):
        yield from commands_of(command.commands[name], (*path, name))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_says_what_it_does(name):
    context = click.Context(main)
    for path, command in commands_of(main.get_command(context, name), (name,)):
        assert command.help, f"flakelog {' '.join(path)} has no help"
        for option in command.params:
            if isinstance(option, click.Option) and option.name not in OBVIOUS:
                assert option.help, f"flakelog {' '.join(path)} {option.opts[0]} has no help"


OBVIOUS = {"count", "partitions", "compression"}


def test_a_setting_of_kafkas_that_is_not_used_is_explained_by_its_name():
    done = CliRunner().invoke(main, ["settings", "num.io.threads"])
    assert done.exit_code == 0
    assert done.output.splitlines()[0] == "num.io.threads  (server, ignored)"
    assert "One thread serves all connections" in done.output


def test_the_version_is_that_of_the_package():
    assert VERSION == version("flakelog")


# --- small promises ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "topic list --servers {}", "consume x --servers h:1,{}", "id new --server {}", "id new --zookeeper {}",
        "id workers --zookeeper {}", "server --zookeeper {}", "produce x --servers {}",
    ],
)  # fmt: skip
@pytest.mark.parametrize("address", ["kafka://user:hunter2@127.0.0.1:1", "user:hunter2@127.0.0.1:1"])
def test_a_password_in_an_address_is_refused_and_not_shown(line, address):
    result = CliRunner().invoke(main, line.format(address).split())
    assert result.exit_code == 2 and "no user and no password; give HOST:PORT" in result.stderr
    assert "hunter2" not in result.output


def test_clients_show_no_password_either():
    with pytest.raises(ValueError, match="give host:port") as refused:
        parse_addresses("kafka://user:hunter2@127.0.0.1:1")
    assert "hunter2" not in str(refused.value)


def test_ctrl_c_at_a_question_ends_with_130(monkeypatch):
    def answer(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(click.termui, "visible_prompt_func", answer)
    with pytest.raises(Interrupted) as ended:
        confirm("delete all?")
    assert ended.value.exit_code == 130


@pytest.mark.parametrize("given", ["", "n\n"])
def test_a_question_without_a_yes_ends_with_1(given):
    result = CliRunner().invoke(click.Command("asks", callback=lambda: confirm("delete all?")), input=given)
    assert result.exit_code == 1


def test_an_empty_name_is_refused_before_a_question_is_asked():
    result = CliRunner().invoke(main, ["group", "delete", ""], input="y\n")
    assert result.exit_code == 2 and "it is empty" in result.stderr and "delete" not in result.stderr.splitlines()[-1]


def test_the_help_of_a_header_says_which_is_null():
    help_text = " ".join(CliRunner().invoke(main, ["produce", "--help"]).output.split())
    assert "NAME alone is a null header, NAME= an empty one" in help_text


def test_a_search_of_many_partitions_goes_in_portions_and_tells_how_far_it_is():
    partitions = [("orders", number) for number in range(7)]
    portion_sizes, steps = [], []

    def ask(some):
        portion_sizes.append(len(some))
        if ("orders", 3) in some:
            raise BrokerError(5, "orders-3")
        return dict.fromkeys(some, 1)

    answers, errors = ask_in_portions(partitions, ask, steps.append, at_once=3)
    assert steps == [3, 3, 1] and portion_sizes == [3, 3, 1, 2, 1]
    assert set(answers) | set(errors) == set(partitions) and list(errors) == [("orders", 3)]


def test_a_file_that_is_no_properties_file_is_wrong_usage(tmp_path):
    (tmp_path / "bad.properties").write_bytes(b"\xff\xfe")
    for command in ("server", "idgen"):
        result = CliRunner().invoke(main, [command, "--config", str(tmp_path / "bad.properties")])
        assert result.exit_code == 2 and "is no properties file" in result.stderr


def test_ctrl_c_behind_a_message_that_was_queued_counts_it():
    """librdkafka has the message, and the interpreter raises KeyboardInterrupt before the next statement."""

    class Queue:
        def __init__(self):
            self.delivered = []

        def produce(self, topic, value, key, on_delivery):
            self.delivered.append(on_delivery)
            raise KeyboardInterrupt

        def flush(self, seconds):
            while self.delivered:
                self.delivered.pop()(None, None)

        def purge(self):
            pass

    delivery = Delivery(NOBODY, Target("orders", 1, None, "none", []), timeout=1)
    delivery._producer = Queue()
    with pytest.raises(KeyboardInterrupt):
        delivery.send([Line(None, b"a")])
    delivery.end_now()
    assert delivery.counts() == "1 message acknowledged, 0 not"


def test_a_help_with_exit_codes_has_the_indents_of_one_without():
    def command():
        """Do it.

        It takes long.
        """

    assert with_exit_codes(command.__doc__, [0]) == "Do it.\n\nIt takes long.\n\n\b\nExit codes:\n  0 success"


def test_ctrl_c_while_the_commands_are_imported_ends_with_130(tmp_path):
    (tmp_path / "click.py").write_text("raise KeyboardInterrupt")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    ended = subprocess.run([sys.executable, "-m", "flakelog"], env=environment, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (130, "Error: ended by Ctrl-C\n")


def test_a_commit_that_no_broker_takes_ends_as_without_a_server():
    with pytest.raises(NobodyAnswers, match="not committed"), client_of(NOBODY):
        raise CommitFailed("group g: orders-0 not committed") from Unreachable(NOBODY, "refused")
