"""The pages of several brokers as one: metrics with a label `broker`, and health by broker.

| page | as one |
|---|---|
| /metrics | each sample has the label `broker`; `flakelog_broker_up` is 0 for a broker that did not answer |
| /health | well if all brokers are well and answer |
| /health/ready | ready if all brokers that answer are: those without an answer take no partitions of the others away |
"""

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from flakelog.metric_table import ALL

LINES_AT_ONCE = 2_000  # take 1 to 2 ms
UP = "flakelog_broker_up"


def joined_metrics(pages: Mapping[int, bytes], without_answer: Collection[int]) -> Iterator[bytes]:
    """Yield the page of all brokers in parts; empty ones come between, so that the caller can work at other things."""
    families: dict[bytes, list[bytes]] = {}
    for broker_id, page in pages.items():
        label = b'broker="%d"' % broker_id
        lines: list[bytes] = []
        is_new = False
        for number, line in enumerate(page.splitlines(), 1):
            if line.startswith(b"# HELP "):
                name = line.split(b" ", 3)[2]
                is_new = name not in families
                lines = families.setdefault(name, [])
                if is_new:
                    lines.append(line)
            elif line.startswith(b"#"):
                if is_new:
                    lines.append(line)
            elif line:
                lines.append(_labelled(line, label))
            if number % LINES_AT_ONCE == 0:
                yield b""
    for lines in families.values():
        yield b"\n".join(lines) + b"\n"
    ups = dict.fromkeys(pages, 1) | dict.fromkeys(without_answer, 0)
    text = [f"# HELP {UP} {ALL[UP].meaning}", f"# TYPE {UP} {ALL[UP].kind}"]
    text += [f'{UP}{{broker="{broker_id}"}} {up}' for broker_id, up in sorted(ups.items())]
    yield "".join(f"{line}\n" for line in text).encode()


def _labelled(line: bytes, label: bytes) -> bytes:
    """Return a sample with one more label. A name has neither a brace nor a space; the text of a label may."""
    brace, space = line.find(b"{"), line.find(b" ")
    if 0 <= brace < space:
        return line[: brace + 1] + label + b"," + line[brace + 1 :]
    return line[:space] + b"{" + label + b"}" + line[space:]


def joined_health(pages: Mapping[int, bytes], without_answer: Collection[int]) -> tuple[bool, dict[str, Any]]:
    """Return whether all is well on all brokers, and the details."""
    brokers = _brokers(pages)
    healthy = all(broker["healthy"] for broker in brokers.values()) and not without_answer
    return healthy, {"healthy": healthy, "without_answer": list(without_answer), "brokers": brokers}


def joined_ready(pages: Mapping[int, bytes], without_answer: Collection[int]) -> tuple[bool, dict[str, Any]]:
    """Return whether this server should receive work, and the details."""
    brokers = _brokers(pages)
    is_ready = all(broker["ready"] for broker in brokers.values())
    return is_ready, {"ready": is_ready, "without_answer": list(without_answer), "brokers": brokers}


def _brokers(pages: Mapping[int, bytes]) -> dict[str, Any]:
    return {str(broker_id): json.loads(page) for broker_id, page in pages.items()}
