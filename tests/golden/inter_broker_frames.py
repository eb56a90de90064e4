"""Frames between the brokers of Apache Kafka 3.9.1 (tests/golden/inter_broker/README.md): one text file per API."""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent / "inter_broker"
FILES = sorted(HERE.glob("*.txt"))
_SAMPLE = re.compile(
    r"# client id '(?P<client>.*)' to broker .*\n"
    r"# request  (?P<asked>.*)\n"
    r"# response (?P<answered>.*)\n"
    r"request  (?P<request>[0-9a-f]+)\n"
    r"response (?P<response>[0-9a-f]+)\n"
)


class Sample(NamedTuple):
    """A request and its response: the frames without their length fields, and their values by Kafka's names."""

    client_id: str
    request: bytes
    request_values: dict[str, Any]
    response: bytes
    response_values: dict[str, Any]


def read(path):
    return [
        Sample(
            sample["client"],
            bytes.fromhex(sample["request"]),
            json.loads(sample["asked"]),
            bytes.fromhex(sample["response"]),
            json.loads(sample["answered"]),
        )
        for sample in _SAMPLE.finditer(path.read_text())
    ]
