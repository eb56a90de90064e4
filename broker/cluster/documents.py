"""The nodes of a cluster: their paths, and their JSON byte for byte as Kafka 3.9 writes it to ZooKeeper.

The order of the keys is that of Kafka's maps, and there are no spaces. Kafka's brokers ignore a key that they do not
know, and drop it at their next write; so does this module, except for the key `flakelog`. It is left out where it would
say nothing, so that the node of a partition with one copy, or with Kafka's brokers only, equals Kafka's.

| node | data | written by |
|---|---|---|
| /brokers/ids/1 (ephemeral) | Registration | the broker; its czxid is the broker epoch |
| /brokers/topics/t | Topic | the controller, or a broker that creates an internal topic |
| /brokers/topics/t/partitions/0/state | LeaderAndIsr | the controller; its version is the partition epoch |
| /controller (ephemeral), /controller_epoch | the controller's id; a number | the controller |
| /admin/delete_topics/t | nothing | the controller |
| /config/topics/t, /config/changes/config_change_N | settings; whose settings changed | any broker |
| /cluster/id, /feature | the cluster id; no features | the first broker, the first controller |
| /latest_producer_id_block | ProducerIdBlock | the controller |
| /log_dir_event_notification/log_dir_event_N | the broker whose disk failed | that broker |
| /isr_change_notification/isr_change_N | the partitions with another ISR | a leader before Kafka 2.7 |
| /flakelog_adoption | AdoptionMarker (`adoption_marker`) | a broker that brings its directory along, until the end |
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from broker.cluster.json_document import DamagedDocument as DamagedDocument  # readers of nodes import it from here
from broker.cluster.json_document import decode_json, encode_json, json_number, json_value
from coordination.port import Node

BROKER_IDS = "/brokers/ids"
TOPICS = "/brokers/topics"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
DELETE_TOPICS = "/admin/delete_topics"
CONFIG_CHANGES = "/config/changes"
CLUSTER_ID = "/cluster/id"
FEATURE = "/feature"
PRODUCER_ID_BLOCK = "/latest_producer_id_block"
ISR_CHANGES = "/isr_change_notification"
LOG_DIR_EVENTS = "/log_dir_event_notification"
PERSISTENT_PATHS = (
    "/consumers", BROKER_IDS, TOPICS, CONFIG_CHANGES, DELETE_TOPICS, "/brokers/seqid", ISR_CHANGES,
    PRODUCER_ID_BLOCK, LOG_DIR_EVENTS, "/config/topics", "/config/clients", "/config/users",
    "/config/brokers", "/config/ips",
)  # fmt: skip
"""The nodes that a broker creates at its start, in Kafka's order."""

NO_LEADER = -1
LEADER_DURING_DELETE = -2
EPOCH_DURING_DELETE = -2
RECOVERED, RECOVERING = 0, 1
NO_LIFE = -1
"""The life of a member in `lives` that is trusted in no life, until it joins the ISR anew (rule W3).

The numbers below say the same, and that the member came with an empty data directory (`life_without_records`).
"""
NO_LAST_LIFE, NEW_DIRECTORY = -1, -2
"""What a data directory says in place of its last life: it does not tell, or it is new and has no log."""
NO_FEATURES = b'{"features":{},"version":2,"status":1}'

T = TypeVar("T", int, str, bool)


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def broker_path(broker_id: int) -> str:
    return f"{BROKER_IDS}/{broker_id}"


def topic_path(topic: str) -> str:
    return f"{TOPICS}/{topic}"


def partitions_path(topic: str) -> str:
    return f"{TOPICS}/{topic}/partitions"


def partition_path(partition: TopicPartition) -> str:
    return f"{TOPICS}/{partition.topic}/partitions/{partition.partition}"


def state_path(partition: TopicPartition) -> str:
    return f"{TOPICS}/{partition.topic}/partitions/{partition.partition}/state"


def deletion_path(topic: str) -> str:
    return f"{DELETE_TOPICS}/{topic}"


def config_path(topic: str) -> str:
    return f"/config/topics/{topic}"


@dataclass(frozen=True)
class Endpoint:
    """An advertised listener; `protocol` is its security protocol: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""

    listener: str
    protocol: str
    host: str
    port: int


@dataclass(frozen=True)
class Life:
    """The state of a broker's data at its start (rule W1), under the key `flakelog` of its registration.

    `whole` is True if the data has all that the broker's last life confirmed. `last` is the broker epoch of the life
    before, as the data directory has kept it, or one of NO_LAST_LIFE and NEW_DIRECTORY.
    """

    whole: bool
    last: int

    @classmethod
    def decode(cls, path: str, document: Any) -> "Life | None":
        if document is None:
            return None
        whole = json_value(path, document, "whole", bool) if isinstance(document, dict) else None
        if whole is None:
            raise DamagedDocument(f"{path}: 'flakelog' is {document!r}, not a JSON dict")
        return cls(whole, json_number(path, document, "last"))


@dataclass(frozen=True)
class Registration:
    """A broker of the cluster, version 5: its listeners and rack. A broker of Kafka's says nothing of its life."""

    endpoints: tuple[Endpoint, ...]
    timestamp_ms: int
    rack: str | None = None
    life: Life | None = None

    def encode(self) -> bytes:
        plaintext = next((e for e in self.endpoints if e.protocol == "PLAINTEXT"), None)
        document = {
            "features": {},
            "listener_security_protocol_map": {e.listener: e.protocol for e in self.endpoints},
            "endpoints": [f"{e.listener}://{_bracketed(e.host)}:{e.port}" for e in self.endpoints],
            **({} if self.rack is None else {"rack": self.rack}),
            "jmx_port": -1,
            "port": -1 if plaintext is None else plaintext.port,
            "host": None if plaintext is None else plaintext.host,
            "version": 5,
            "timestamp": str(self.timestamp_ms),
            **({} if self.life is None else {"flakelog": {"whole": self.life.whole, "last": self.life.last}}),
        }
        return encode_json(document)

    @classmethod
    def decode(cls, path: str, data: bytes) -> "Registration":
        document = decode_json(path, data)
        protocols = document.get("listener_security_protocol_map", {})
        texts = json_value(path, document, "endpoints", list)
        endpoints = tuple(_endpoint(path, str(text), protocols) for text in texts)
        timestamp = json_number(path, document, "timestamp") if "timestamp" in document else 0
        life = Life.decode(path, document.get("flakelog"))
        return cls(endpoints, timestamp, document.get("rack"), life)


@dataclass(frozen=True)
class Assignment:
    """The replicas of a partition; those being added and removed are recorded during a reassignment (KIP-455)."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    def without(self, replica: int) -> "Assignment":
        def remaining(ids: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(broker_id for broker_id in ids if broker_id != replica)

        return Assignment(remaining(self.replicas), remaining(self.adding), remaining(self.removing))


@dataclass(frozen=True)
class Topic:
    """A topic, version 3: its id and the replicas of each partition. A topic of Kafka before 2.8 has no id."""

    topic_id: UUID | None
    assignments: Mapping[int, Assignment]

    def encode(self) -> bytes:
        rows = sorted(self.assignments.items())
        document = {
            "partitions": {str(index): row.replicas for index, row in rows},
            **({} if self.topic_id is None else {"topic_id": encode_uuid(self.topic_id)}),
            "adding_replicas": {str(index): row.adding for index, row in rows if row.adding},
            "removing_replicas": {str(index): row.removing for index, row in rows if row.removing},
            "version": 3,
        }
        return encode_json(document)

    @classmethod
    def decode(cls, path: str, data: bytes) -> "Topic":
        document = decode_json(path, data)
        partitions = json_value(path, document, "partitions", dict)
        adding, removing = document.get("adding_replicas", {}), document.get("removing_replicas", {})
        try:
            assignments = {
                int(index): Assignment(
                    _ids(replicas), _ids(adding.get(index, ())), _ids(removing.get(index, ()))
                )
                for index, replicas in partitions.items()
            }
            text = document.get("topic_id")
            topic_id = None if text is None else decode_uuid(text)
        except (ValueError, TypeError, AttributeError) as error:
            raise DamagedDocument(f"{path}: {error}") from error
        return cls(topic_id, dict(sorted(assignments.items())))


@dataclass(frozen=True)
class LeaderAndIsr:
    """The leader of a partition, decided by the controller with epoch `controller_epoch`.

    `partition_epoch` is the version of the node, which a leader names when it asks for another ISR (KIP-497). `elr` has
    the replicas that may lead although they left the ISR (KIP-966). `lives` has the broker epoch in which each member
    of ISR and ELR joined, or NO_LIFE. Kafka's controller drops both at its next write, so a member may have no entry.
    """

    leader: int
    isr: tuple[int, ...]
    leader_epoch: int = 0
    partition_epoch: int = 0
    controller_epoch: int = 0
    recovery_state: int = RECOVERED
    elr: tuple[int, ...] = ()
    lives: Mapping[int, int] = field(default_factory=dict, compare=False)

    @property
    def members(self) -> tuple[int, ...]:
        """Return the members of ISR and ELR."""
        return tuple(dict.fromkeys((*self.isr, *self.elr)))

    def succeeded_by(
        self,
        leader: int,
        isr: tuple[int, ...],
        elr: tuple[int, ...] = (),
        recovery_state: int | None = None,
    ) -> "LeaderAndIsr":
        """Return the next decision. Each one raises the leader epoch, because brokers ignore an order that does not."""
        state = self.recovery_state if recovery_state is None else recovery_state
        epoch = self.leader_epoch + 1
        return replace(self, leader=leader, isr=isr, elr=elr, leader_epoch=epoch, recovery_state=state)

    def encode(self) -> bytes:
        document = {
            "controller_epoch": self.controller_epoch,
            "leader": self.leader,
            "version": 1,
            **({} if self.recovery_state == RECOVERED else {"leader_recovery_state": self.recovery_state}),
            "leader_epoch": self.leader_epoch,
            "isr": self.isr,
            **({"flakelog": self._own_key()} if self.elr or self.lives else {}),
        }
        return encode_json(document)

    def _own_key(self) -> dict[str, Any]:
        return {"elr": self.elr, "lives": {str(member): epoch for member, epoch in sorted(self.lives.items())}}

    @classmethod
    def decode(cls, path: str, node: Node) -> "LeaderAndIsr":
        document = decode_json(path, node.data)
        own = document.get("flakelog") or {}
        try:
            isr = _ids(json_value(path, document, "isr", list))
            elr = _ids(own.get("elr", ()))
            lives = {int(member): int(epoch) for member, epoch in own.get("lives", {}).items()}
        except (ValueError, TypeError, AttributeError) as error:
            raise DamagedDocument(f"{path}: {error}") from error
        return cls(
            leader=json_number(path, document, "leader"),
            isr=isr,
            leader_epoch=json_number(path, document, "leader_epoch"),
            partition_epoch=node.version,
            controller_epoch=json_number(path, document, "controller_epoch"),
            recovery_state=int(document.get("leader_recovery_state", RECOVERED)),
            elr=elr,
            lives=lives,
        )


@dataclass(frozen=True)
class ProducerIdBlock:
    """The newest block of producer ids that the cluster gave away, and the broker that received it."""

    broker_id: int
    first: int
    last: int

    def encode(self) -> bytes:
        return encode_json(
            {"version": 1, "broker": self.broker_id, "block_start": str(self.first), "block_end": str(self.last)}
        )

    @classmethod
    def decode(cls, data: bytes) -> "ProducerIdBlock":
        document = decode_json(PRODUCER_ID_BLOCK, data)
        broker_id, first, last = (
            json_number(PRODUCER_ID_BLOCK, document, key) for key in ("broker", "block_start", "block_end")
        )
        return cls(broker_id, first, last)


def encode_controller(broker_id: int, timestamp_ms: int) -> bytes:
    return encode_json(
        {"version": 2, "brokerid": broker_id, "timestamp": str(timestamp_ms), "kraftControllerEpoch": -1}
    )


def decode_controller(data: bytes) -> int:
    """Return the id of the broker that is the controller. Kafka before 3.4 writes version 1, which has it too."""
    return json_number(CONTROLLER, decode_json(CONTROLLER, data), "brokerid")


def encode_epoch(epoch: int) -> bytes:
    return b"%d" % epoch


def decode_epoch(data: bytes) -> int:
    try:
        return int(data)
    except ValueError as error:
        raise DamagedDocument(f"{CONTROLLER_EPOCH}: {data[:40]!r} is no number") from error


def encode_config(settings: Mapping[str, str]) -> bytes:
    return encode_json({"version": 1, "config": settings})


def decode_config(path: str, data: bytes) -> dict[str, str]:
    """Return the settings of a topic, broker, client or user. A node without data has none."""
    if not data:
        return {}
    document = decode_json(path, data)
    settings = json_value(path, document, "config", dict) if "config" in document else {}
    return {str(key): str(value) for key, value in settings.items()}


def encode_config_change(entity_path: str) -> bytes:
    """Return the data of a change node; `entity_path` is `topics/t`, `brokers/1`, `brokers/<default>` or `users/u`."""
    return encode_json({"version": 2, "entity_path": entity_path})


def decode_config_change(path: str, data: bytes) -> str:
    return str(json_value(path, decode_json(path, data), "entity_path", str))


def encode_log_dir_event(broker_id: int) -> bytes:
    """Return the data of a node that says that a disk of a broker failed."""
    return encode_json({"version": 1, "broker": broker_id, "event": 1})


def decode_log_dir_event(path: str, data: bytes) -> int:
    """Return the broker whose disk failed."""
    return json_number(path, decode_json(path, data), "broker")


def decode_isr_change(path: str, data: bytes) -> list[TopicPartition]:
    """Return the partitions whose leaders wrote another ISR to `state` themselves, as Kafka did before 2.7."""
    partitions = json_value(path, decode_json(path, data), "partitions", list)
    try:
        return [TopicPartition(str(row["topic"]), int(row["partition"])) for row in partitions]
    except (KeyError, ValueError, TypeError) as error:
        raise DamagedDocument(f"{path}: {error}") from error


def encode_cluster_id(cluster_id: str) -> bytes:
    return encode_json({"version": "1", "id": cluster_id})


def decode_cluster_id(data: bytes) -> str:
    return str(json_value(CLUSTER_ID, decode_json(CLUSTER_ID, data), "id", str))


def encode_uuid(uuid: UUID) -> str:
    """Return an id as Kafka shows it: 22 characters of URL-safe Base64."""
    return urlsafe_b64encode(uuid.bytes).rstrip(b"=").decode()


def decode_uuid(text: str) -> UUID:
    return UUID(bytes=urlsafe_b64decode(text + "=="))


def _ids(values: Any) -> tuple[int, ...]:
    return tuple(int(value) for value in values)


def _endpoint(path: str, text: str, protocols: Mapping[str, str]) -> Endpoint:
    listener, _, address = text.partition("://")
    host, _, port = address.rpartition(":")
    if not listener or not port.isdigit():
        raise DamagedDocument(f"{path}: the endpoint {text!r} is not LISTENER://host:port")
    return Endpoint(listener, protocols.get(listener, listener), host.strip("[]"), int(port))


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
