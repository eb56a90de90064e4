"""Every option of every command refuses what does not fit, in one line that names the option."""

import os
import sys

import click
import pytest
from click.testing import CliRunner

from flakelog.cli import REPORT, main
from flakelog.commands.arguments import INT32_MAX, INT64_MAX, Ensemble, FilePath, Name, Seconds, Text, Whole
from flakelog.commands.completion import TopicType
from flakelog.commands.id import IdType
from flakelog.commands.load import SinceType
from flakelog.commands.produce_input import Framing, read_lines, read_whole
from flakelog.commands.replay_range import OffsetsType
from flakelog.commands.start import StartType
from flakelog.commands.terminal import TimeType

LONG, NO_UTF_8 = "9" * 100_000, "\udcff"
VALUES = {
    "0": "0", "-1": "-1", "2**31": str(1 << 31), "2**63": str(1 << 63), "10**30": str(10**30), "nan": "nan",
    "inf": "inf", "empty": "", "very long": LONG, "not UTF-8": NO_UTF_8,
}  # fmt: skip
NUMBERS = (Whole, Seconds, TimeType, StartType, IdType, SinceType, OffsetsType)
NO_NUMBERS = {"10**30", "nan", "inf", "empty", "very long", "not UTF-8"}
RUNS = ("server", "idgen", "demo")  # they would begin to run, so only their arguments are parsed
NOBODY = "127.0.0.1:1"


def commands_of(command, words=()):
    context = click.Context(main)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            yield from commands_of(command.get_command(context, name), (*words, name))
    else:
        yield words, command


COMMANDS = dict(commands_of(main))


def refused(kind, name):
    """Return True if a value can be told to be wrong without a server."""
    if isinstance(kind, NUMBERS):
        too_large = isinstance(kind, Whole) and (name == "2**63" or (name == "2**31" and kind.max <= INT32_MAX))
        return name in NO_NUMBERS or too_large
    if isinstance(kind, Text):
        return name in ("very long", "not UTF-8") or (name == "empty" and isinstance(kind, Name))
    if isinstance(kind, FilePath):
        return name == "very long"
    return isinstance(kind, click.Choice) and VALUES[name] not in kind.choices


def filled(param):
    """Return a good value of a parameter that a command needs."""
    if isinstance(param.type, click.Choice):
        return param.type.choices[0]
    if param.name == "assignments":
        return "a=1"
    if isinstance(param.type, FilePath):
        return "." if param.type.dir_okay else "new-file"
    return {StartType: "latest", TimeType: "2013-01-01"}.get(type(param.type), "2")


def line_of(command, param, value):
    """Return the arguments of a command with one value, and all else that it needs."""
    options, arguments = [], []
    for parameter in command.params:
        chosen = value if parameter is param else filled(parameter)
        if isinstance(parameter, click.Argument):
            arguments += [chosen] * max(parameter.nargs, 1) if parameter.required or parameter is param else []
        elif parameter is param or parameter.required:
            name = parameter.opts[-1]
            is_one_word = name[:2] == "--" and parameter.nargs == 1
            options += [f"{name}={chosen}"] if is_one_word else [name, *[chosen] * parameter.nargs]
    if "--all-brokers" in {parameter.opts[0] for parameter in command.params} and param.name not in ("topic", "broker"):
        options.append("--all-brokers")
    if param.name != "timeout" and any(parameter.name == "timeout" for parameter in command.params):
        options.append("--timeout=0.05")
    return [*options, "--", *arguments]


def answer_of(words, command, arguments):
    """Return exit code and stderr."""
    if words[0] in RUNS:
        try:
            command.make_context(words[-1], arguments)
        except click.UsageError as error:
            return error.exit_code, error.format_message()
        return 0, ""
    env = {"FLAKELOG_SERVERS": NOBODY, "FLAKELOG_IDS": NOBODY}
    result = CliRunner().invoke(main, [*words, *arguments], input=b"", env=env)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stderr


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_option_refuses_what_does_not_fit(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = COMMANDS[words]
    for param in command.params:
        if getattr(param, "is_flag", False):
            continue
        for name, value in VALUES.items():
            code, errors = answer_of(words, command, line_of(command, param, value))
            context = f"{param.opts[-1]} = {name}: {code} {errors[-300:]}"
            assert REPORT not in errors and "Traceback" not in errors, context
            assert words[0] in RUNS or len(errors) < 3_000, context
            if refused(param.type, name):
                assert code == 2 and param.get_error_hint(click.Context(command)).strip("'") in errors, context


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_no_option_has_a_type_without_bounds(words):
    loose = (type(click.STRING), type(click.INT), type(click.FLOAT), click.IntRange, click.FloatRange, click.Path)
    assert not [param.opts for param in COMMANDS[words].params if type(param.type) in loose]


@pytest.mark.parametrize(
    "line, reason",
    [
        ("topic create x --partitions 99999999999", "'--partitions': 99999999999 is not in the range 1<=x<=2147483647"),
        ("topic add-partitions x --to 99999999999", "'--to': 99999999999 is not in the range 2<=x<=2147483647"),
        ("consume x --from @99999999999999999999", "'--from': '99999999999999999999' is after the year 9999"),
        ("consume x --count 123456789012345678901234", "'--count': 123456789012345678901234 is not in the range 1<=x"),
        ("consume x --timeout nan", "'--timeout': 'nan' is not a valid float"),
        ("consume x --timeout inf", "'--timeout': 'inf' is not a valid float"),
        ("consume x --partition -1", "'--partition': -1 is not in the range x>=0."),
        ("topic describe " + "x" * 250, "is longer than a topic's 249 characters"),
    ],
)
def test_the_error_names_the_option_and_its_bounds(line, reason):
    result = CliRunner().invoke(main, line.split())
    assert result.exit_code == 2 and reason in result.stderr
    assert len(result.stderr) < 500


@pytest.mark.parametrize("line", ["LONG", "topic LONG", "topic list --LONG", "topic list LONG", "--LONG topic list"])
def test_the_error_quotes_the_beginning_of_a_long_word(line):
    result = CliRunner().invoke(main, line.replace("LONG", "x" * 100_000).split())
    assert result.exit_code == 2 and "xxx..." in result.stderr and len(result.stderr) < 500


def test_the_largest_numbers_fit():
    assert Whole(0).convert(str(INT64_MAX), None, None) == INT64_MAX
    assert Seconds().convert("0", None, None) == 0.0
    assert TopicType().convert("x" * 249, None, None) == "x" * 249


def test_an_empty_zookeeper_is_none_because_variables_of_scripts_may_be_empty():
    result = CliRunner().invoke(main, ["id", "new", "--zookeeper", "", "--server", NOBODY, "--timeout", "1"])
    assert result.exit_code == 3 and f"no id service answers at {NOBODY}" in result.stderr


@pytest.mark.parametrize("hosts", [",", ":::", "a:0", "a:65536", "..", "a,", "é\u202e", "a\x1b", "[::1"])
@pytest.mark.parametrize(
    "line", ["id new --zookeeper", "id workers --zookeeper", "id workers --set", "spout progress show --store"]
)
def test_hosts_that_no_ensemble_has_are_refused_by_name(line, hosts):
    before = {"--set": "flakelog.ids.zookeeper.connect=", "--store": "zookeeper://"}.get(line.split()[-1], "")
    result = CliRunner().invoke(main, [*line.split(), before + hosts])
    assert "must be host:port,host:port/chroot" in result.stderr and REPORT not in result.stderr
    assert result.exit_code == (1 if "--store" in line else 2)


@pytest.mark.parametrize("hosts", ["a", "a:2181,b", "a:2181/chroot/b", "[::1]:2181", "127.0.0.1", "bücher.example"])
def test_hosts_of_an_ensemble_are_taken(hosts):
    assert Ensemble().convert(hosts, None, None) == hosts


def test_a_credentials_file_that_is_missing_is_named():
    arguments = ["--zookeeper", "a", "--set", "flakelog.ids.zookeeper.credentials.file=nowhere"]
    result = CliRunner().invoke(main, ["id", "new", *arguments])
    assert result.exit_code == 1 and "nowhere" in result.stderr and REPORT not in result.stderr


# --- errors of the user's topology, and of our own --------------------------------------------------------------------


@pytest.mark.parametrize(
    "source, reason",
    [
        ("x = 1\ndef (", "broken.py:2: SyntaxError"),
        ("x = 1\n\nimport nowhere_at_all\n", "broken.py:3: ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("import json\njson.loads('{')\n", "broken.py:2: JSONDecodeError"),
        ("def t():\n    raise OSError('no\\nnetwork')\n", "broken.py:2: OSError: no network"),
    ],
)
def test_a_module_that_fails_is_named_with_its_line(source, reason, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "broken.py").write_text(source)
    result = CliRunner().invoke(main, ["spout", "run", "broken.py:t"])
    assert result.exit_code == 2 and reason in result.stderr.splitlines()[-1]
    assert "MODULE:TOPOLOGY" in result.stderr and "Traceback" not in result.stderr
    result = CliRunner().invoke(main, ["spout", "run", "broken.py:t", "--debug"])
    assert result.exit_code == 2 and "Traceback" in result.stderr


def test_storms_form_of_a_topology_names_the_line_that_failed_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "broken_in_storm.py").write_text("import nowhere_at_all\n")
    result = CliRunner().invoke(main, ["spout", "storm", "--out", "new-file", "broken_in_storm:t"])
    assert result.exit_code == 2 and "broken_in_storm.py:1: ModuleNotFoundError" in result.stderr


@pytest.mark.parametrize("debug", [[], ["--debug"]])
def test_an_error_that_escapes_asks_for_a_report_and_debug_shows_its_traceback(debug, monkeypatch):
    def fail():
        raise LookupError("a fault\nof ours")

    monkeypatch.setattr(main, "get_command", lambda context, name: click.Command(name, callback=fail))
    result = CliRunner().invoke(main, [*debug, "any"])
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == f"Error: LookupError: a fault of ours. {REPORT}"
    assert ("Traceback" in result.stderr) is bool(debug)


def test_an_error_of_cleaning_up_after_ctrl_c_is_ctrl_c():
    """Ctrl-C in a job of Spark made "KeyError: 'p'", and asked for a report."""

    def fail():
        try:
            raise KeyboardInterrupt
        finally:
            {}["p"]

    main_of_one = type(main)(commands={})
    main_of_one.get_command = lambda context, name: click.Command(name, callback=fail)
    result = CliRunner().invoke(main_of_one, ["any"])
    assert result.exit_code == 130 and result.stderr == "Error: ended by Ctrl-C\n"


@pytest.mark.skipif(not os.path.exists("/proc/self/mem"), reason="no file of which it is known that reading fails")
@pytest.mark.parametrize("whole", [False, True])
def test_an_input_that_cannot_be_read_is_named(whole):
    with open("/proc/self/mem", "rb") as file, pytest.raises(click.ClickException, match="/proc/self/mem cannot be"):
        list((read_whole if whole else read_lines)([file], Framing(), id))
