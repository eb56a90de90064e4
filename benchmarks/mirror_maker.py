"""Apache Kafka's MirrorMaker 2 as a process, for the benchmarks and the tests of mirrors.

`make stock` fetches its jars if Maven is installed.
"""

import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from benchmarks.apache import SHORT_LIVED, java_command

CLASSPATH = Path(__file__).parent.parent / "tests" / "compat" / "mirror_maker" / "target" / "classpath"
MAIN = "org.apache.kafka.connect.mirror.MirrorMaker"
STOP_SECONDS = 30


class MirrorMaker:
    """A MirrorMaker of one source, which keeps the names of topics. A context manager.

    `alias` names the source. MirrorMaker keeps what it has copied under this name, so another alias begins anew.
    """

    def __init__(
        self,
        directory: Path,
        source: str,
        target: str,
        topics: str,
        *,
        alias: str = "source",
        jvm_options: tuple[str, ...] = SHORT_LIVED,
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._directory = directory
        self._jvm_options = jvm_options
        servers = {"source": alias, "servers": source, "target": target, "topics": topics}
        lines = [f"{name}={value}\n" for name, value in settings.items()]  # of two lines for a name the last counts
        self._properties = _PROPERTIES.format(**servers) + "".join(lines)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "MirrorMaker":
        """Start it. Raise Unavailable if its jars or Java are not there."""
        command = mirror_maker_command(*self._jvm_options)
        self._directory.mkdir(parents=True, exist_ok=True)
        properties = self._directory / "mm2.properties"
        properties.write_text(self._properties)
        with (self._directory / "log").open("wb") as log:
            self._process = subprocess.Popen([*command, str(properties)], stdout=log, stderr=log)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    @property
    def pid(self) -> int:
        assert self._process is not None, "it was not started"
        return self._process.pid

    @property
    def log(self) -> str:
        return (self._directory / "log").read_text(errors="replace")


def mirror_maker_command(*jvm_options: str) -> list[str]:
    """Return the java command of MirrorMaker, to which the caller adds a file of properties. Raise Unavailable."""
    return [*java_command(CLASSPATH, "MirrorMaker", *jvm_options), MAIN]


_PROPERTIES = """\
clusters={source},target
{source}.bootstrap.servers={servers}
target.bootstrap.servers={target}
{source}->target.enabled=true
{source}->target.topics={topics}
target->{source}.enabled=false
{source}.consumer.isolation.level=read_committed
replication.policy.class=org.apache.kafka.connect.mirror.IdentityReplicationPolicy
emit.heartbeats.enabled=false
sync.group.offsets.enabled=true
sync.group.offsets.interval.seconds=2
emit.checkpoints.interval.seconds=2
refresh.topics.interval.seconds=5
refresh.groups.interval.seconds=5
tasks.max=1
replication.factor=1
offset-syncs.topic.replication.factor=1
checkpoints.topic.replication.factor=1
heartbeats.topic.replication.factor=1
offset.storage.replication.factor=1
status.storage.replication.factor=1
config.storage.replication.factor=1
"""
