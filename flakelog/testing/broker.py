"""`Broker`: a test's handle of a broker that runs in another process."""

import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

from coordination.free_port import FreePort
from flakelog.testing.process import BrokerError, BrokerProcess

if TYPE_CHECKING:
    from broker.client.blocking import Client
    from broker.client.records import Record

START_SECONDS = 60.0  # on a busy machine; a broker that exits is noticed at once
LOOK_SECONDS = 0.01  # between two reads of the log

Topics: TypeAlias = Mapping[str, int | Mapping[str, Any]]
"""The partitions of each topic, or {"partitions": 3, "config": {"cleanup.policy": "compact"}}."""

# Settings on top of --dev: free ports, and one partition for topics that a cluster spreads over fifty.
SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "flakelog.http.listener": "127.0.0.1:0",
    "flakelog.ids.listener": "",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}
PORTS = ("listeners", "flakelog.http.listener")


class Broker:
    """A broker in a separate process, which ends when it is closed or when this program ends.

    `settings` are a server's, by name (`flakelog settings` lists them). `directory` keeps the data; without one, the
    data is in a temporary directory, which is removed at the end. `start_seconds` limits the time of a start. `start`
    raises DidNotStart, with the broker's log, if something is wrong.
    """

    def __init__(
        self,
        topics: Topics | None = None,
        settings: Mapping[str, object] | None = None,
        *,
        directory: str | os.PathLike[str] | None = None,
        start_seconds: float = START_SECONDS,
    ) -> None:
        self._topics = {name: _parsed(name, wanted) for name, wanted in (topics or {}).items()}
        self._settings = SETTINGS | {name: _text(value) for name, value in (settings or {}).items()}
        self._directory = directory
        self._start_seconds = start_seconds
        self._home: Path | None = None
        self._process: BrokerProcess | None = None
        self._addresses: dict[str, str] = {}
        self._ports: dict[str, FreePort] = {}
        """Ports that no setting names; reserved, so that no program takes them while the broker is down."""
        self._client: Client | None = None

    def __enter__(self) -> "Broker":
        return self if self.running else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- life ----------------------------------------------------------------------------------------------------

    def start(self) -> "Broker":
        """Start the broker, and return when it serves. `with` calls this. Raises DidNotStart."""
        if self._process is None:
            self._home = Path(tempfile.mkdtemp(prefix="flakelog-test-"))
            self._process = BrokerProcess(self._home / "log")
            self._ports = {name: FreePort() for name in PORTS if self._settings[name] == SETTINGS[name]}
        try:
            self._start(self._process)
        except BrokerError:
            if not self._addresses:  # the first start: there is nothing useful to keep
                self.close()
            raise
        return self

    def _start(self, process: BrokerProcess) -> None:
        assert self._home is not None
        data = self._home / "data" if self._directory is None else Path(self._directory)
        arguments = ["--dev", "--data-dir", str(data)]
        for name, value in (self._settings | self._same_ports()).items():
            arguments += ["--set", f"{name}={value}"]
        first = not self._addresses
        topics = self._topics if first else {}
        for name, (partitions, config) in topics.items():
            values = ",".join(f"{setting}={value}" for setting, value in config.items())
            arguments += ["--topic", f"{name}:{'' if partitions is None else partitions}:{values}"]
        self._addresses = process.start(arguments, self._start_seconds)
        process.order(do="remove", directory=str(self._home))

    def _same_ports(self) -> dict[str, str]:
        """Return settings with fixed ports, so that clients find the broker again after a restart."""
        if not self._addresses:
            return {name: SETTINGS[name].replace(":0", f":{port.number}") for name, port in self._ports.items()}
        return {"listeners": f"PLAINTEXT://{self.address}", "flakelog.http.listener": self.http_address}

    def close(self) -> None:
        """Stop the broker and remove its temporary files; do nothing if it is closed."""
        self._drop_client()
        if self._process is not None:
            if self._directory is None:
                self._process.kill()
            else:
                self._process.stop()
        if self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)
        for port in self._ports.values():
            port.close()
        self._home, self._process, self._addresses, self._ports = None, None, {}, {}

    def kill(self) -> None:
        """Send SIGKILL, as in a crash. `restart` starts the broker again with the same port and data."""
        self._drop_client()
        self._running.kill()

    def restart(self) -> "Broker":
        """Stop the broker cleanly if it runs, and start it with the same port and data. Faults are cleared."""
        self._drop_client()
        self._running.stop()
        return self.start()

    def stall(self) -> None:
        """Freeze the broker: connections stay open and nothing is answered until `resume`."""
        self._running.stall()

    def resume(self) -> None:
        """Continue after `stall`."""
        self._running.resume()

    # --- state ---------------------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    @property
    def pid(self) -> int:
        return self._running.pid

    @property
    def bootstrap_servers(self) -> str:
        """The address as `host:port`, as Kafka's clients take it."""
        return self._address("broker")

    @property
    def address(self) -> str:
        """The same address as `bootstrap_servers`, as `host:port`."""
        return self._address("broker")

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def http_address(self) -> str:
        """The address of metrics and health, as `host:port`."""
        return self._address("http")

    def log(self, since: int = 0) -> str:
        """Return the broker's log of all its runs, or the part since a `mark`."""
        return self._running.log.read_bytes()[since:].decode(errors="replace")

    def mark(self) -> int:
        """Return the end of the log, as a position for `log` and `wait_for_log`."""
        return self._running.log.stat().st_size

    def wait_for_log(self, text: str, seconds: float = 10.0, since: int = 0) -> str:
        """Return the first line of the log with this text; raise TimeoutError, with the log, if none comes in time."""
        end = time.monotonic() + seconds
        while True:
            log = self.log(since)
            for line in log.splitlines():
                if text in line:
                    return line
            if time.monotonic() > end:
                raise TimeoutError(f"no {text!r} in the broker's log within {seconds} s:\n{log}")
            time.sleep(LOOK_SECONDS)

    # --- topics --------------------------------------------------------------------------------------------------

    def create_topic(self, name: str, partitions: int = -1, config: Mapping[str, object] | None = None) -> str:
        """Create a topic and return its name; raise broker.client.errors.BrokerError.

        With -1 partitions it gets the broker's `num.partitions`. The request is like any client's, so pending faults
        apply to it too.
        """
        properties = {key: _text(value) for key, value in (config or {}).items()}
        self._connected().create_topic(name, partitions, properties)
        return name

    def delete_topic(self, name: str) -> None:
        """Delete a topic with all its records."""
        self._connected().delete_topic(name)

    def records(self, topic: str, partition: int | None = None) -> "list[Record]":
        """Return all present records of a topic, or of one partition.

        They are in order of partition and offset, and include those of transactions that were not committed. Each has
        offset, id, timestamp_ms, key, value and headers.
        """
        client = self._connected()
        every = range(client.topic(topic).partitions) if partition is None else (partition,)
        return [record for number in every for record in _read_all(client, topic, number)]

    def _connected(self) -> "Client":
        if self._client is None:
            from broker.client.blocking import Client

            self._client = Client(self.address)
        return self._client

    def _drop_client(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = None

    # --- failures on demand --------------------------------------------------------------------------------------

    def fail_next(self, api: str, error: str | int, times: int = 1) -> None:
        """Answer the next requests of an API with an error, and do not execute them.

        `api` is a name such as "Produce", "Fetch" or "FindCoordinator"; `error` is a name or a number of Kafka's
        protocol. The fault is queued after earlier ones. Raises ValueError if the API cannot fail with this error.
        """
        self._running.order(do="fail", api=api, error=error, times=times)

    def close_next(self, api: str, times: int = 1, when: str = "before") -> None:
        """Close the connections of the next requests of an API without an answer.

        `when` is "before" or "after" the request is carried out; a client cannot know which it was.
        """
        self._running.order(do="close", api=api, when=when, times=times)

    def delay(self, api: str, ms: int, times: int | None = None) -> None:
        """Carry out requests of an API, but delay their answers by `ms`: the next `times`, or all until `ms` is 0."""
        self._running.order(do="delay", api=api, ms=ms, times=times)

    def clear_faults(self) -> None:
        """Clear all pending faults."""
        self._running.order(do="clear")

    def faults_left(self) -> dict[str, dict[str, int]]:
        """Return the pending faults, such as {"Produce": {"queue": 2, "delay_ms": 0}}; {} if none are pending."""
        pending: dict[str, dict[str, int]] = self._running.order(do="left")
        return pending

    def heal(self) -> None:
        """Restart the broker if it does not run, resume it, and clear all faults. Its records stay."""
        if not self.running:
            self.restart()
        self.resume()
        self.clear_faults()

    # --- inside --------------------------------------------------------------------------------------------------

    @property
    def _running(self) -> BrokerProcess:
        if self._process is None:
            raise BrokerError("it is not started; use it in a `with`, or start() it")
        return self._process

    def _address(self, name: str) -> str:
        if name not in self._addresses:
            raise BrokerError(f"there is no {name} address: it is not started, or that part is off")
        return self._addresses[name]


def _parsed(name: str, wanted: int | Mapping[str, Any]) -> tuple[int | None, dict[str, str]]:
    """Return a topic's partitions, None for the broker's default, and its settings; raise ValueError."""
    if isinstance(wanted, int):
        return wanted, {}
    unknown = wanted.keys() - {"partitions", "config"}
    if unknown:
        raise ValueError(f"topic {name}: no {', '.join(sorted(unknown))}; give partitions and config")
    return wanted.get("partitions"), {key: _text(value) for key, value in wanted.get("config", {}).items()}


def _text(value: object) -> str:
    """Return a setting's value as a properties file has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _read_all(client: "Client", topic: str, partition: int) -> "list[Record]":
    from broker.client.core import EARLIEST, LATEST

    offset, end = (client.find_offset(topic, partition, side) for side in (EARLIEST, LATEST))
    records_read: list[Record] = []
    while offset < end:
        records, following = client.fetch(topic, partition, offset)
        records_read += records
        if following <= offset:
            break
        offset = following
    return records_read
