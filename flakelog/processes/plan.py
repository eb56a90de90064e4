"""The settings of each broker of one machine, from those of the parent.

With broker id b, a listener at port p and N processes, child i has the id b + i, the port p + i for each listener, and
the data directory <data> (the first) or <data>/nodes/<id>. So a directory of a single server becomes that of the first
broker, and no file moves. Each child advertises its port by the same arithmetic. Port 0 stays 0.

HTTP and the id service have one port each, which all children share. Unless they are given, they come after the last
port of the brokers. If the brokers have no fixed port, they stay where a single server has them.

Limits that are shares of the machine are divided by N, unless the operator gives them: like all of Kafka's settings, a
given limit is that of one broker.

| setting | share of the machine |
|---|---|
| queued.max.request.bytes | an eighth of the memory |
| max.connections | a half of the descriptors, and one for each 64 KiB of memory |
| flakelog.ids.max.connections, flakelog.http.max.connections | an eighth of the descriptors |
| flakelog.max.open.files | a fifth of the descriptors |
| flakelog.busy.poll.us | a core; 0 if each core has a process |

The other limits are numbers of one process, whatever the machine: threads, caches, the journal, the cleaner's memory.

A topic of a coordinator has a copy in each of two processes, because a third one, which Kafka's defaults want, will not
come. One of these two copies is enough for a transaction to go on.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from broker.address import host_port
from broker.settings.config import BrokerConfig
from broker.settings.group_config import GroupConfig
from flakelog.config import ServerConfig
from flakelog.listeners import EVERYWHERE, LISTENERS, Listener, moved, moved_by, parse_listeners, parse_names
from flakelog.machine import fitting_settings, partition_files
from flakelog.server.cluster_coordinator import cluster_dir_of, data_dir_of
from idgen.config import IdgenConfig
from idgen.settings import InvalidSetting, split_address

ADVERTISED = "advertised.listeners"
HTTP, IDS = "flakelog.http.listener", "flakelog.ids.listener"
SHARED = {"http": HTTP, "ids": IDS}  # by the names of their addresses, in the order of their ports
NODE_ID, WORKER = "node.id", "flakelog.ids.worker"
COORDINATOR_COPIES = "offsets.topic.replication.factor", "transaction.state.log.replication.factor"
ZOOKEEPER = "zookeeper.connect"  # where other machines may have brokers of the cluster
TRANSACTION_MIN_ISR = "transaction.state.log.min.isr"
OPEN_FILES, BUSY_POLL = "flakelog.max.open.files", "flakelog.busy.poll.us"
PORT_MAX = 65_535


class Machine(NamedTuple):
    """The machine's limits; `memory_bytes` is None if it is not known."""

    cores: int
    memory_bytes: int | None
    open_files: int


class ChildPlan(NamedTuple):
    """The id and the directory of a broker, and the settings in which it differs from its parent."""

    id: int
    data_dir: Path
    settings: dict[str, str]

    @property
    def name(self) -> str:
        return f"broker {self.id}"

    @property
    def arguments(self) -> list[str]:
        """The options of `flakelog server`; they go after those of the parent, since the last --set counts."""
        return ["--data-dir", str(self.data_dir), *(f"--set={name}={text}" for name, text in self.settings.items())]


class Plan(NamedTuple):
    """All brokers of a parent."""

    children: tuple[ChildPlan, ...]
    sockets: dict[str, tuple[str, int]]
    """Host and port of the sockets that the parent binds, by the names of their addresses: http, ids."""
    cluster_dir: Path


class _Ports(NamedTuple):
    """The ports of one listener in all children."""

    setting: str
    label: str
    host: str
    first: int
    last: int

    def collides(self, other: "_Ports") -> bool:
        hosts = self.host, other.host
        same_host = hosts[0] == hosts[1] or any(host in EVERYWHERE for host in hosts)
        return same_host and self.first <= other.last and other.first <= self.last

    def __str__(self) -> str:
        numbers = str(self.first) if self.first == self.last else f"{self.first} to {self.last}"
        return f"{self.label} takes {numbers}"


def plan(
    texts: Mapping[str, str], processes: int, data_dir: Path, machine: Machine, *, port: int | None = None
) -> Plan:
    """Return the plan of `processes` brokers. Raise ValueError, mostly InvalidSetting, if ports do not fit.

    `texts` has the given settings by name, which are valid for one server, without the defaults that fit the machine.
    `port` is the port of the first broker, as --port moves all listeners that are given.
    """
    listeners = {LISTENERS: texts.get(LISTENERS, ServerConfig().listeners)}
    listeners |= {name: texts[name] for name in (ADVERTISED, *SHARED.values()) if texts.get(name)}
    if not parse_listeners(listeners[LISTENERS]):
        raise InvalidSetting(LISTENERS, "", "must have a listener, because each process is a broker")
    if port is not None:
        listeners = moved(listeners, port)
    own = {name: text for name, text in listeners.items() if name in (LISTENERS, ADVERTISED)}
    _check_apart(listeners, processes, texts)
    moved_listeners = [_moved_by(own, index) for index in range(processes)]
    shared = _shared(texts, listeners, processes)
    first_id = int(texts.get(NODE_ID, BrokerConfig().node_id))
    limits = _limits(texts, processes, machine) | _copies(texts, processes)
    children = []
    for index, own_listeners in enumerate(moved_listeners):
        settings = {NODE_ID: str(first_id + index), **own_listeners, **shared, **limits}
        if WORKER in texts:
            settings[WORKER] = str(int(texts[WORKER]) + index)
        directory = data_dir_of(data_dir, first_id + index, first_id)
        children.append(ChildPlan(first_id + index, directory, settings))
    addresses = {name: split_address(shared[setting]) for name, setting in SHARED.items()}
    sockets = {name: address for name, address in addresses.items() if address is not None}
    return Plan(tuple(children), sockets, cluster_dir_of(data_dir))


def _moved_by(texts: Mapping[str, str], distance: int) -> dict[str, str]:
    """Return listeners moved by `distance`; raise InvalidSetting, which names the setting, if a port would be none."""
    moved_texts: dict[str, str] = {}
    for name, text in texts.items():
        try:
            moved_texts |= moved_by({name: text}, distance)
        except ValueError as error:
            raise InvalidSetting(name, text, f"{error}; give lower ports") from None
    return moved_texts


def _opened(text: str, texts: Mapping[str, str]) -> Iterator[Listener]:
    """Yield the listeners with a fixed port, without those of controllers, which are not opened."""
    controllers = parse_names(texts.get("controller.listener.names"))
    return (listener for listener in parse_listeners(text) if listener.port and listener.name not in controllers)


def _check_apart(listeners: Mapping[str, str], processes: int, texts: Mapping[str, str]) -> None:
    """Raise InvalidSetting for the first listener whose ports in all children overlap with those of another one."""
    for names in ((LISTENERS, HTTP, IDS), (ADVERTISED,)):
        earlier: list[_Ports] = []
        for name in names:
            for ports in _ports(name, listeners.get(name, ""), processes, texts):
                other = next(filter(ports.collides, earlier), None)
                if other is not None:
                    wanted = f"{other} with {processes} processes, and {ports}; begin {ports.label} at {other.last + 1}"
                    raise InvalidSetting(name, listeners[name], f"{wanted} or higher")
                earlier.append(ports)


def _ports(name: str, text: str, processes: int, texts: Mapping[str, str]) -> Iterator[_Ports]:
    if name in (HTTP, IDS):
        address = split_address(text)
        if address is not None and address[1]:
            yield _Ports(name, name, address[0], address[1], address[1])
        return
    for listener in _opened(text, texts):
        yield _Ports(name, listener.name, listener.host, listener.port, listener.port + processes - 1)


def _shared(texts: Mapping[str, str], listeners: Mapping[str, str], processes: int) -> dict[str, str]:
    """Return the given listeners of HTTP and ids; by default they take the next ports after the last broker's."""
    defaults = {HTTP: ServerConfig().http_listener, IDS: IdgenConfig().ids_listener}
    last = max((listener.port for listener in _opened(listeners[LISTENERS], texts)), default=0)
    taken = {split_address(listeners[name]) for name in defaults if name in listeners}
    taken_ports = {address[1] for address in taken if address is not None}
    following = (number for number in range(last + processes, PORT_MAX + 1) if number not in taken_ports)
    shared = {}
    for name, default in defaults.items():
        host, port = split_address(default) or ("", 0)
        if name in texts:
            shared[name] = listeners.get(name, "")
        elif not last:
            shared[name] = default
        else:
            port = next(following, 0)
            if not port:
                raise InvalidSetting(LISTENERS, listeners[LISTENERS], f"no port is left after it; give {name} one")
            shared[name] = host_port(host, port)
    return shared


def _copies(texts: Mapping[str, str], processes: int) -> dict[str, str]:
    """Return the copies of the coordinators' topics, where there are fewer brokers than Kafka's defaults want."""
    if texts.get(ZOOKEEPER) or processes >= GroupConfig().offsets_topic_replication_factor:
        return {}
    copies = dict.fromkeys(COORDINATOR_COPIES, str(processes)) | {TRANSACTION_MIN_ISR: "1"}
    return {name: text for name, text in copies.items() if name not in texts}


def _limits(texts: Mapping[str, str], processes: int, machine: Machine) -> dict[str, str]:
    """Return each child's shares of the machine. A given limit stays, because it is that of one broker."""
    open_files = machine.open_files // processes
    memory_bytes = None if machine.memory_bytes is None else machine.memory_bytes // processes
    limits = fitting_settings(memory_bytes, open_files)
    limits[OPEN_FILES] = str(partition_files(open_files))
    given = {name for name, text in texts.items() if (name, text) != (OPEN_FILES, "0")}
    limits = {name: text for name, text in limits.items() if name not in given}
    if processes >= machine.cores:
        limits[BUSY_POLL] = "0"  # also over a given one: with one core for a process, its peer needs that core
    return limits
