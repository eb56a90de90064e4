"""Small requests on many connections, sent by native/request_load.c, and what came of them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from benchmarks.apache import Peer
from benchmarks.brokers import Topics
from benchmarks.measure import Figures
from benchmarks.native import program, run_program
from benchmarks.plan import Plan, Planned, leader_acks
from broker.client.blocking import Client
from broker.client.core import LATEST

CONNECTIONS = 50
NOT_IDEMPOTENT = -1


class Played(NamedTuple):
    """The numbers that request_load prints; its head explains them."""

    seconds: float
    answers: float
    p50_us: float
    p99_us: float
    max_us: float
    cpu_seconds: float
    errors: float
    first_error: float
    records: float
    answer_bytes: float
    flood_sent: float
    flood_answers: float
    flood_errors: float
    flood_closed: float

    @property
    def figures(self) -> dict[str, float]:
        return {
            "req/s": self.answers / self.seconds,
            "p50 us": self.p50_us,
            "p99 us": self.p99_us,
            "CPU us/req": self.cpu_seconds / max(self.answers, 1) * 1e6,
        }


def play(
    peer: Peer, directory: Path, plan: Plan, flood: Plan | None = None, login: Plan | None = None, **options: int | str
) -> Played:
    """Play a plan once. The files go to `directory`. RuntimeError where the broker answers with an error."""
    files = {"plan": plan, "flood": flood, "login": login}
    for name, one_plan in files.items():
        if one_plan is None:
            continue
        (directory / name).write_bytes(one_plan.encode())
        options[name] = str(directory / name)
    options |= {"pid": ",".join(map(str, peer.pids)), "answer": str(directory / "answer")}
    words = [f"{name}={value}" for name, value in options.items()]
    played = Played(*run_program(program("request_load"), peer.address, *words))
    if played.errors or played.flood_errors:
        raise RuntimeError(f"the broker refuses: {played}")
    return played


def first_answer(directory: Path) -> bytes:
    """The first answer of the latest run, whole."""
    return (directory / "answer").read_bytes()


def frame_plan(frame: bytes) -> Plan:
    """Plan one frame that is sent as it is."""
    return Plan([Planned(frame)])


class Load(NamedTuple):
    """What the clients of a run send; each connection begins at its own place in the plan and moves `step` on with each
    group of requests. `plan` and `flood` are given the topic and the number of partitions. `config` is the topic's."""

    plan: Callable[[str, int], Plan] = leader_acks
    connections: int = CONNECTIONS
    partitions: int = 1
    step: int = 0
    depth: int = 1
    producer: int = NOT_IDEMPOTENT
    config: Mapping[str, str] = {}
    seconds: int = 0
    """The run ends after this time, even if requests are left; 0: it does not."""


def run_load(peer: Peer, topics: Topics, directory: Path, load: Load, requests: int) -> Figures:
    """Run once on a fresh topic. RuntimeError where the broker refuses, or has fewer records than it acknowledged."""
    with topics.fresh(load.partitions, **load.config) as topic:
        return run_on(peer, topic, directory, load, requests)


def run_on(peer: Peer, topic: str, directory: Path, load: Load, requests: int) -> Figures:
    """Run once on an empty topic. Raise RuntimeError as `run_load` does."""
    plan = load.plan(topic, load.partitions)
    played = play(peer, directory, plan, requests=requests, **options_of(load))
    check_stored(peer, topic, load.partitions, played)
    return played.figures


def options_of(load: Load) -> dict[str, int]:
    """The options of request_load for what a load's clients do."""
    names = "connections", "step", "depth", "producer", "seconds"
    return {name: getattr(load, name) for name in names}


def check_stored(peer: Peer, topic: str, partitions: int, played: Played, unanswered: int = 0) -> None:
    """Raise RuntimeError unless the log has the acknowledged records; it may have those of unanswered requests."""
    with Client(peer.address) as client:
        stored = sum(client.find_offset(topic, partition, LATEST) for partition in range(partitions))
    if not played.records <= stored <= played.records + unanswered:
        raise RuntimeError(f"{stored} records of {played.records:.0f} are in the log")
