"""Sixty wrong inputs. Each gives one clear line, the right exit code, no traceback, and an end within 5 s."""

import pytest

from flakelog.commands.waiting import CONTACT_SECONDS

NOBODY = "127.0.0.1:1"  # no process listens on this port

# (command, exit code, what the line says). TMP is an empty directory, FILE a file that is no properties file, and PROPS
# a properties file with an unknown setting.
WRONG = [
    # --- the command line itself
    ("topics", 2, "No such command 'topics'"),
    ("topic lst", 2, "No such command 'lst'"),
    ("topic list --al", 2, "No such option"),
    ("topic create", 2, "Missing argument 'NAME...'"),
    ("topic list --timeout 0", 2, "0<x<=86400"),
    ("topic list --timeout soon", 2, "'soon' is not a valid float"),
    ("completion tcsh", 2, "'tcsh' is not one of 'bash', 'fish', 'zsh'"),
    # --- addresses
    (f"topic list --servers {NOBODY}", 3, f"no broker answers at {NOBODY}"),
    ("topic list --servers localhost", 2, "'localhost' is no address; give host:port"),
    ("topic list --servers localhost:99999", 2, "'localhost:99999' is no address"),
    ("topic list --servers ,", 2, "no address given; give host:port"),
    ("topic list --servers no-such-host.invalid:9092 --timeout 2", 3, "no broker answers at no-such-host.invalid:9092"),
    (f"id new --server {NOBODY}", 3, f"no id service answers at {NOBODY}"),
    ("id new --server nowhere", 2, "nowhere"),
    (f"id workers --zookeeper {NOBODY} --timeout 0.3", 3, f"no ZooKeeper answered at {NOBODY}"),
    # --- topics
    ("topic create sl/ash", 1, "INVALID_TOPIC_EXCEPTION"),
    ("topic create w-1 --partitions 0", 2, "0 is not in the range x>=1"),
    ("topic create w-1 --partitions 200000", 1, "w-1"),
    ("topic create w-1 --set retention", 2, "'retention' is no setting; give NAME=VALUE"),
    ("topic create w-1 --set retention.mss=1", 1, "did you mean retention.ms?"),
    ("topic create w-1 --config retention.ms=week", 1, "Not a number of type LONG"),
    ("topic create wrong", 1, "TOPIC_ALREADY_EXISTS"),
    ("topic describe w-none", 1, "UNKNOWN_TOPIC_OR_PARTITION"),
    ("topic delete w-none --yes", 1, "UNKNOWN_TOPIC_OR_PARTITION"),
    ("topic alter wrong", 2, "nothing to alter"),
    ("topic alter wrong --set cleanup.policy=none", 1, "cleanup.policy"),
    ("topic add-partitions wrong --to 2 --yes", 1, "INVALID_PARTITIONS"),
    ("topic delete-records wrong --before 99 --yes", 1, "has offsets 0 to 0, not 99"),
    ("topic delete-records wrong --before yesterday --yes", 2, "'yesterday' is no place to begin"),
    # --- messages
    ("produce wrong --partition 9", 1, "has partitions 0 to 1, not 9"),
    ("produce wrong --compression rar", 2, "'rar' is not one of"),
    ("produce wrong -K =", 1, "line 1 has no '=' between a key and a value"),
    ("produce wrong -D \\q", 2, "has an unknown escape"),
    ("produce wrong -H =1", 2, "'=1' is no header; give NAME=VALUE"),
    ("produce wrong TMP/none", 2, "No such file or directory"),
    ("produce wrong --whole", 2, "--whole is for FILEs without keys"),
    ("consume w-none", 1, "UNKNOWN_TOPIC_OR_PARTITION"),
    ("consume wrong --partition 5", 1, "has partitions 0 to 1, not 5"),
    ("consume wrong --from 3", 2, "name one by --partition"),
    ("consume wrong --from 3 --partition 0", 1, "wrong-0 has offsets 0 to 0, not 3"),
    ("consume wrong --from -0", 2, "'-0' is no place to begin"),
    ("consume wrong --from -1000000", 2, "more than 100,000 messages"),
    ("consume wrong --from @noon", 2, "'noon' is no time"),
    ("consume wrong -f %q", 2, "%q is no token of a format; there are %s"),
    ("consume wrong --count 0", 2, "0 is not in the range x>=1"),
    ("consume wrong --group g --partition 0", 2, "a --group has its own partitions and offsets"),
    ("consume wrong --group g --from 7", 2, "a --group has its own partitions and offsets"),
    # --- the largest numbers and names that fit, so that they are sent
    ("topic create w-1 --partitions 2147483647", 1, "w-1"),
    ("topic add-partitions wrong --to 2147483647 --yes", 1, "wrong"),
    ("topic delete-records wrong --before 9223372036854775807 --yes", 1, "has offsets 0 to 0"),
    ("topic describe " + "x" * 249, 1, "UNKNOWN_TOPIC_OR_PARTITION"),
    ("group describe " + "x" * 32_767, 1, "xxx"),
    ("consume wrong --from 9223372036854775807 --partition 0", 1, "wrong-0 has offsets 0 to 0"),
    ("consume wrong --partition 2147483647", 1, "has partitions 0 to 1"),
    ("consume wrong --count 9223372036854775807", 0, ""),
    ("consume wrong --from @253402300799999", 0, ""),
    ("consume wrong --from id:9223372036854775807", 0, ""),
    ("config get --broker 2147483647", 1, "2147483647"),
    ("transactions abort wrong 1 --start-offset 9223372036854775807 --yes", 1, "has 0 open transactions"),
    ("transactions find-hanging wrong --older-than 1000000000", 0, ""),
    ("transactions describe " + "x" * 32_767, 1, "there is no transactional id xxx"),
    ("quotas alter --client-id x --set producer_byte_rate=nan", 2, "'nan' is no number"),
    ("quotas alter --client-id x --set producer_byte_rate=1e400", 2, "'1e400' is no number"),
    ("id find 9223372036854775807", 1, "no message has id"),
    ("spout dead list wrong --count 9223372036854775807", 1, "wrong.dead-letters"),
    ("spout dead send wrong --id 9223372036854775807", 1, "wrong"),
    # --- bytes that are no UTF-8
    ("topic describe \udcff", 2, "is no UTF-8 text"),
    ("produce wrong -H \udcff=1", 2, "is no UTF-8 text"),
    ("consume wrong --group \udcff", 2, "is no UTF-8 text"),
    ("config get --topic \udcff", 2, "is no UTF-8 text"),
    # --- groups, settings, quotas, transactions, partitions
    ("group describe w-none", 1, "w-none"),
    ("group delete w-none --yes", 1, "there is no group w-none"),
    ("group reset-offsets w-none --to earliest", 1, "name a topic it is to begin with"),
    ("cluster elect", 2, "say which election: --preferred or --unclean"),
    ("cluster elect --preferred --partition 0", 2, "--partition needs --topic"),
    ("cluster elect --preferred --topic w-none", 1, "UNKNOWN_TOPIC_OR_PARTITION"),
    ("cluster elect --unclean --topic wrong --partition 9 --yes", 1, "1 partition of 1 got no leader by this election"),
    ("config get", 2, "one of --topic NAME, --broker ID and --all-brokers"),
    ("config set --topic wrong retention.ms", 2, "'retention.ms' is no setting; give NAME=VALUE"),
    ("config set --all-brokers listeners=x", 1, "listeners"),
    ("config get --topic wrong speed", 1, "topic wrong has no setting speed"),
    ("quotas alter --client-id x", 2, "nothing to alter"),
    ("quotas alter --set producer_byte_rate=1", 2, "say whose quotas"),
    ("quotas alter --client-id x --set producer_byte_rate=fast", 2, "'fast' is no number"),
    ("quotas alter --ip nowhere --set connection_creation_rate=1", 1, "nowhere"),
    ("user set ada", 2, "give --password-file FILE, or - for stdin"),
    ("user set ada --password-file TMP/none", 2, "cannot be read: No such file or directory"),
    ("user set ada --password-file PROPS --mechanism PLAIN", 2, "'PLAIN' is not one of 'SCRAM-SHA-256', 'SCRAM-SHA-5"),
    ("user set ada --password-file PROPS --iterations 9", 2, "9 is not in the range 4096<=x<=16384"),
    ("user delete w-none --yes", 1, "user w-none has no password for SCRAM"),
    ("transactions list --state Lost", 2, "'Lost' is not one of"),
    ("transactions describe w-none", 1, "there is no transactional id w-none"),
    ("transactions abort wrong 0 --start-offset 0 --yes", 1, "has 0 open transactions"),
    ("partitions describe wrong 9", 1, "has partitions 0 to 1, not 9"),
    # --- ids
    ("id decode 12a", 2, "'12a' is no id"),
    ("id decode 9223372036854775808", 2, "is no id"),
    ("id find 4096", 1, "no message has id 4096"),
    ("id range 2013-02-01 2013-01-01", 2, "before its start"),
    ("id new --directory TMP --zookeeper x:1", 2, "not from both"),
    ("id workers --directory TMP", 1, "no worker numbers are kept in"),
    # --- servers, topologies, replays, loads
    ("server --set num.partition=4", 2, "did you mean num.partitions"),
    ("server --set listeners=SASL_SSL://h:9093", 2, "sasl.enabled.mechanisms=GSSAPI: GSSAPI (Kerberos) is not served"),
    ("server --config TMP/none", 2, "does not exist"),
    ("server --config FILE", 2, "is no properties file"),
    ("server --check-config PROPS", 1, ""),
    ("server --topic orders:x --data-dir TMP/data --set listeners=", 2, "orders:x"),
    ("check TMP/none", 2, "does not exist"),
    ("mirror --from a:1 --from a:1 --to b:1 --all", 2, "two --from have the same brokers"),
    ("mirror --from a:1 --to b:1", 2, "give --topics REGEX or --all"),
    ("mirror --from a:1 --to b:1 --all --instance a/b", 2, "--instance 'a/b' must be 1 to"),
    ("mirror run --from a:1 --to b:1 --all --prefix a/", 2, "--prefix 'a/': names of topics have letters"),
    ("spout run nowhere:topology", 2, "nowhere"),
    ("spout progress show --store TMP/none", 1, "there is no directory"),
    ("spout dead list w-none", 1, "w-none"),
    ("settings no.such.setting", 1, "no.such.setting"),
    ("replay wrong", 2, "give --out, or --plan"),
    ("replay orders --manifest x --out y", 2, "give topics or --manifest, not both"),
    ("replay orders --columns colour --out y", 2, "colour"),
    ("replay w-none --plan", 1, "w-none"),
    ("replay --verify TMP", 1, "has no _receipt.json: it is no replay"),
    ("load w-none --to TMP/place", 1, "w-none"),
    ("load wrong --to TMP/place --format xls", 2, "'xls' is not one of"),
    ("load wrong --to TMP/place --decode json", 2, "--decode needs one --schema FILE"),
]
LINES_OF_USAGE = ("Usage: ", "Try '")  # which click prints before the error of a wrong call


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return make_place(tmp_path_factory.mktemp("wrong"))


def make_place(directory):
    """Fill a directory: an empty one, a file that is no properties file, a properties file with an unknown setting."""
    (directory / "empty").mkdir()
    (directory / "file").write_bytes(b"\xff\xfe")
    (directory / "props").write_text("num.partition=4\n")
    return directory


def at(place, command):
    """Return a command with the paths of a place."""
    for name, path in (("TMP", "empty"), ("FILE", "file"), ("PROPS", "props")):
        command = command.replace(name, str(place / path))
    return command


def assert_one_clear_line(answer, code, said):
    """Check (exit code, output, errors) of a command."""
    found, out, errors = answer
    lines = [line for line in errors.splitlines() if not line.startswith(LINES_OF_USAGE) and line]
    assert found == code, answer
    assert said in (errors or out), errors
    assert len(lines) == 1, lines
    assert "Traceback" not in errors and ("Error" in lines[0] or not said)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("command, code, said", WRONG, ids=[command for command, _, _ in WRONG])
def test_a_wrong_input_gives_one_clear_line_and_the_right_exit_code(flakelog, place, command, code, said):
    """A command waits CONTACT_SECONDS for a server at most; pytest-timeout ends one that waits longer."""
    assert CONTACT_SECONDS < 5
    flakelog("topic create wrong --partitions 2")
    assert_one_clear_line(flakelog(at(place, command), b"line\n"), code, said)
