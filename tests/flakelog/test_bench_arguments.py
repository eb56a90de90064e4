"""Arguments of `flakelog bench` that cannot work are refused before anything is asked or sent."""

import pytest
from click.testing import CliRunner

from flakelog.cli import main


@pytest.mark.parametrize(
    "command, reason",
    [
        ("produce", "Missing argument 'TOPIC'"),
        ("produce t", "say how much to send: --count, --seconds, or both"),
        ("produce t --count 0", "--count"),
        ("produce t --seconds nan", "--seconds"),
        ("produce t --seconds 0", "--seconds"),
        ("produce t --count 1 --size 9..3", "'--size': the range 9..3 ends below its start"),
        ("produce t --count 1 --size 20..999001", "'--size': 999,001 bytes are more than a message may have, 999,000"),
        ("produce t --count 1 --throughput 0", "--throughput"),
        ("produce t --count 1 --throughput nan", "--throughput"),
        ("produce t --count 1 --throughput inf", "--throughput"),
        ("produce t --count 1 --acks 2", "--acks"),
        ("produce t --count 1 --compression rar", "--compression"),
        ("produce t --count 1 --keys 0", "--keys"),
        ("produce t --count 1 --batch-messages 0", "--batch-messages"),
        ("produce t --count 1 --linger-ms -1", "--linger-ms"),
        ("produce t --count 1 --servers host:many", "--servers"),
        ("consume t --from latest", "say by --count how many messages to wait for"),
        ("consume t --count 0", "--count"),
        ("ids --batch 0", "--batch"),
        ("ids --connections 0", "--connections"),
        ("ids --seconds inf", "--seconds"),
        ("ids --server host:many", "--server"),
    ],
)
def test_a_wrong_argument_is_named(command, reason):
    result = CliRunner().invoke(main, ["bench", *command.split()])
    assert result.exit_code == 2, result.output
    assert reason in result.stderr
