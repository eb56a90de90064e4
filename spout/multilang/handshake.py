"""Storm's first message: which task a process is, the tasks of all components, and the topology's configuration."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from broker.client.security.settings import is_of_security
from idgen.settings import from_properties, settings_of
from spout.api import Fields
from spout.multilang.streams import MESSAGE_FIELD

C = TypeVar("C")

MAX_PENDING = "topology.max.spout.pending"
CLIENT = "kafka."  # before the name of a client's property, as in the options of Spark's source
TICK_SECONDS = "topology.tick.tuple.freq.secs"
# How long a process may be silent, before Storm ends its worker: the first of these that is set.
TIMEOUT_SECONDS = ("topology.subprocess.timeout.secs", "supervisor.worker.timeout.secs")
TIMEOUT_SECONDS_DEFAULT = 30


class BadHandshake(ValueError):
    """A first message that does not belong to this process; the text names the fault."""


@dataclass(frozen=True)
class Handshake:
    """The first message. `tasks` are the numbers of each component's tasks, in order.

    `inputs` are the fields of each stream that the task receives, by component and stream, with MESSAGE_FIELD if the
    component is one of Flakelog's.
    """

    component: str
    task: int
    tasks: Mapping[str, tuple[int, ...]]
    inputs: Mapping[tuple[str, str], Fields]
    outputs: Mapping[str, tuple[str, ...]]
    conf: Mapping[str, Any]
    pid_dir: str

    @property
    def index(self) -> int:
        """Return the place of the task among those of its component, from 0."""
        return self.tasks[self.component].index(self.task)

    @property
    def max_pending(self) -> int | None:
        """Return how many tuples of the spout may be in flight, or None without a limit."""
        value = self.conf.get(MAX_PENDING)
        return None if value is None else int(value)

    @property
    def tick_seconds(self) -> int | None:
        """Return how often Storm ticks the task, or None if it does not."""
        value = self.conf.get(TICK_SECONDS)
        return None if value is None else int(value)

    @property
    def timeout_seconds(self) -> int:
        """Return after how many seconds of silence Storm ends the worker."""
        given = [self.conf[name] for name in TIMEOUT_SECONDS if self.conf.get(name)]
        return int(given[0]) if given else TIMEOUT_SECONDS_DEFAULT

    def security(self) -> dict[str, str] | None:
        """Return the client properties for spouts and sinks in the configuration, None if it has none.

        Their references stand for what is on this machine.
        """
        clients = {name.removeprefix(CLIENT): text for name, text in self.texts().items() if name.startswith(CLIENT)}
        return {name: text for name, text in clients.items() if is_of_security(name)} or None

    def config(self, kind: type[C]) -> C:
        """Return settings of this kind with the values of the configuration. Raise InvalidSetting."""
        names = [field.name for field in settings_of(kind)]
        return from_properties(kind, {name: text for name, text in self.texts().items() if name in names})

    def texts(self) -> dict[str, str]:
        """Return the values of the configuration that may be settings, as texts by name."""
        plain = {name: value for name, value in self.conf.items() if isinstance(value, (str, int, float))}
        return {name: str(value).lower() if value in (True, False) else str(value) for name, value in plain.items()}


def handshake_of(message: Any) -> Handshake:
    """Return the handshake that a message is. Raise BadHandshake."""
    try:
        context = message["context"]
        tasks: dict[str, list[int]] = {}
        for number, component in context["task->component"].items():
            tasks.setdefault(component, []).append(int(number))
        sources = context.get("source->stream->fields", {})
        handshake = Handshake(
            component=context["componentid"],
            task=int(context["taskid"]),
            tasks={component: tuple(sorted(numbers)) for component, numbers in tasks.items()},
            inputs={(source, stream): Fields(names) for source, of in sources.items() for stream, names in of.items()},
            outputs={stream: tuple(names) for stream, names in context.get("stream->outputfields", {}).items()},
            conf=message["conf"],
            pid_dir=message["pidDir"],
        )
        handshake.index  # raises if the task is none of its component's
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadHandshake(f"the first message is no handshake of Storm's: {type(error).__name__}: {error}") from None
    return handshake


def check_streams(handshake: Handshake, declared: Mapping[str, tuple[str, ...]]) -> None:
    """Raise BadHandshake if Storm was told of other streams than the component declares now."""
    if {name: tuple(names) for name, names in declared.items()} != dict(handshake.outputs):
        raise BadHandshake(
            f"{handshake.component!r} declares the streams {_listed(declared)}, and the topology in Storm has "
            f"{_listed(handshake.outputs)}: write its YAML again with `flakelog spout storm`"
        )


def _listed(streams: Mapping[str, tuple[str, ...]]) -> str:
    own = {name: [field for field in fields if field != MESSAGE_FIELD] for name, fields in sorted(streams.items())}
    return "; ".join(f"{name} ({', '.join(fields)})" for name, fields in own.items()) or "none"
