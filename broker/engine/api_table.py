"""The served APIs, one row each. ApiVersions answers from this table; the engine finds codec and handler in it.

CONTRIBUTING.md says how to add an API. A handler's module is imported at the first request of its API, so a broker
without groups does not load the handlers of groups.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from broker.engine.rights_table import RIGHTS
from broker.now import Now
from broker.security.authorization.rights import ApiRights
from broker.services.context import RequestContext
from broker.wire import produce
from broker.wire.codec import API_VERSIONS, Codec, codec_of
from broker.wire.errors import ErrorCode, WireError
from broker.wire.frame import RequestHeader
from broker.wire.primitives import skip_tags

Handler = Callable[[RequestContext, Now], Any]


@dataclass(eq=False)
class Api:
    """`oldest` to `newest` are served; `flexible` is the first flexible version (KIP-482).

    Limits and quotas of clients do not hold for a row `between_brokers`.

    Codec and handler are attributes, not properties, because every request reads them.
    """

    key: int
    name: str
    oldest: int
    newest: int
    flexible: int
    module: str
    advertise_from: int | None = None
    between_brokers: bool = False
    rights: ApiRights = field(init=False, repr=False)
    codec: Codec = field(init=False, repr=False)
    handle: Handler = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.rights = RIGHTS[self.module]
        self.codec = codec_of(self.key, self.name, self.newest, self.flexible)
        self.handle = self._first

    @property
    def advertised_oldest(self) -> int:
        """Return the lowest version that ApiVersions shows.

        Produce shows 0, because older librdkafka turns compression off if it does not.
        """
        return self.oldest if self.advertise_from is None else self.advertise_from

    def serves(self, version: int) -> bool:
        return self.oldest <= version <= self.newest

    def not_served(self, version: int) -> str:
        """Return why a request of this version is refused."""
        return f"{self.name} v{version} is not served; v{self.oldest} to v{self.newest} are"

    def unsupported_versions(self) -> dict[str, Any]:
        """Return the answer, in v0, to ApiVersions of an unknown version: the versions that are served (KIP-511)."""
        keys = [{"api_key": self.key, "min_version": self.oldest, "max_version": self.newest}]
        return {"error_code": ErrorCode.UNSUPPORTED_VERSION, "api_keys": keys}

    def body(self, frame: memoryview, header: RequestHeader) -> int:
        """Return where the body of a request begins. Raise WireError."""
        if header.version < self.flexible:
            return header.body
        try:
            return skip_tags(frame, header.body)
        except IndexError:
            raise WireError(f"the header of {self.name} v{header.version} ends before its tags") from None

    def _first(self, call: RequestContext, now: Now) -> Any:
        """Import the handler at the first request, and give it this request and all later ones."""
        self.handle = import_module(f"broker.handlers.{self.module}").handle
        return self.handle(call, now)


PRODUCE = produce.API_KEY
WRITE_TXN_MARKERS = 27

_ROWS = (
    Api(0, "Produce", 3, 13, 9, "produce", advertise_from=0),
    Api(1, "Fetch", 4, 18, 12, "fetch"),
    Api(2, "ListOffsets", 1, 11, 6, "list_offsets"),
    Api(3, "Metadata", 0, 13, 9, "metadata"),
    Api(8, "OffsetCommit", 2, 10, 8, "offset_commit"),
    Api(9, "OffsetFetch", 1, 10, 6, "offset_fetch"),
    Api(10, "FindCoordinator", 0, 6, 3, "find_coordinator"),
    Api(11, "JoinGroup", 0, 9, 6, "join_group"),
    Api(12, "Heartbeat", 0, 4, 4, "heartbeat"),
    Api(13, "LeaveGroup", 0, 5, 4, "leave_group"),
    Api(14, "SyncGroup", 0, 5, 4, "sync_group"),
    Api(15, "DescribeGroups", 0, 6, 5, "describe_groups"),
    Api(16, "ListGroups", 0, 5, 3, "list_groups"),
    Api(17, "SaslHandshake", 0, 1, 2, "sasl_handshake"),
    Api(18, "ApiVersions", 0, 4, 3, "api_versions"),
    Api(19, "CreateTopics", 2, 7, 5, "create_topics"),
    Api(20, "DeleteTopics", 1, 6, 4, "delete_topics"),
    Api(21, "DeleteRecords", 0, 2, 2, "delete_records"),
    Api(22, "InitProducerId", 0, 5, 2, "init_producer_id"),
    Api(23, "OffsetForLeaderEpoch", 2, 4, 4, "offset_for_leader_epoch"),
    Api(24, "AddPartitionsToTxn", 0, 3, 3, "add_partitions_to_txn"),
    Api(25, "AddOffsetsToTxn", 0, 4, 3, "add_offsets_to_txn"),
    Api(26, "EndTxn", 0, 5, 3, "end_txn"),
    Api(27, "WriteTxnMarkers", 1, 2, 1, "write_txn_markers"),
    Api(28, "TxnOffsetCommit", 0, 5, 3, "txn_offset_commit"),
    Api(29, "DescribeAcls", 1, 3, 2, "describe_acls"),
    Api(30, "CreateAcls", 1, 3, 2, "create_acls"),
    Api(31, "DeleteAcls", 1, 3, 2, "delete_acls"),
    Api(32, "DescribeConfigs", 1, 4, 4, "describe_configs"),
    Api(33, "AlterConfigs", 0, 2, 2, "alter_configs"),
    Api(34, "AlterReplicaLogDirs", 1, 2, 2, "alter_replica_log_dirs"),
    Api(35, "DescribeLogDirs", 1, 5, 2, "describe_log_dirs"),
    Api(36, "SaslAuthenticate", 0, 2, 2, "sasl_authenticate"),
    Api(37, "CreatePartitions", 0, 3, 2, "create_partitions"),
    Api(42, "DeleteGroups", 0, 2, 2, "delete_groups"),
    Api(43, "ElectLeaders", 0, 2, 2, "elect_leaders"),
    Api(44, "IncrementalAlterConfigs", 0, 1, 1, "incremental_alter_configs"),
    Api(45, "AlterPartitionReassignments", 0, 1, 0, "alter_partition_reassignments"),
    Api(46, "ListPartitionReassignments", 0, 0, 0, "list_partition_reassignments"),
    Api(48, "DescribeClientQuotas", 0, 1, 1, "describe_client_quotas"),
    Api(49, "AlterClientQuotas", 0, 1, 1, "alter_client_quotas"),
    Api(50, "DescribeUserScramCredentials", 0, 0, 0, "describe_user_scram_credentials"),
    Api(51, "AlterUserScramCredentials", 0, 0, 0, "alter_user_scram_credentials"),
    Api(55, "DescribeQuorum", 0, 2, 0, "describe_quorum"),
    Api(57, "UpdateFeatures", 0, 2, 0, "update_features"),
    Api(47, "OffsetDelete", 0, 0, 1, "offset_delete"),
    Api(60, "DescribeCluster", 0, 2, 0, "describe_cluster"),
    Api(61, "DescribeProducers", 0, 0, 0, "describe_producers"),
    Api(64, "UnregisterBroker", 0, 0, 0, "unregister_broker"),
    Api(65, "DescribeTransactions", 0, 0, 0, "describe_transactions"),
    Api(66, "ListTransactions", 0, 2, 0, "list_transactions"),
    Api(74, "ListConfigResources", 0, 1, 0, "list_config_resources"),
    Api(75, "DescribeTopicPartitions", 0, 0, 0, "describe_topic_partitions"),
)

_BROKER_ROWS = (
    Api(4, "LeaderAndIsr", 7, 7, 7, "leader_and_isr", between_brokers=True),
    Api(5, "StopReplica", 4, 4, 4, "stop_replica", between_brokers=True),
    Api(6, "UpdateMetadata", 8, 8, 8, "update_metadata", between_brokers=True),
    Api(7, "ControlledShutdown", 3, 3, 3, "controlled_shutdown", between_brokers=True),
    Api(24, "AddPartitionsToTxn", 4, 5, 3, "add_partitions_for_brokers", between_brokers=True),
    Api(56, "AlterPartition", 2, 3, 0, "alter_partition", between_brokers=True),
    Api(58, "Envelope", 0, 0, 0, "envelope", between_brokers=True),
    Api(67, "AllocateProducerIds", 0, 0, 0, "allocate_producer_ids", between_brokers=True),
)

APIS: dict[int, Api] = {row.key: row for row in _ROWS}

INTER_BROKER: dict[int, Api] = {row.key: row for row in _BROKER_ROWS}
"""APIs and versions that the inter-broker listener serves beside `APIS`. ApiVersions shows them on that listener only.

Who reaches that listener can delete data.
"""

SERVED_UNINFORMED = frozenset({API_VERSIONS, WRITE_TXN_MARKERS, *INTER_BROKER})
"""APIs that a broker serves before the controller has told it of the cluster: those of connections to come, and those
of other brokers, which may share their connection with the orders of the controller."""


def advertised_to_clients() -> list[tuple[int, int, int]]:
    """Return (API key, oldest version, newest version) of each API, as ApiVersions shows them to clients."""
    return [(api.key, api.advertised_oldest, api.newest) for api in APIS.values()]


def advertised_to_brokers() -> list[tuple[int, int, int]]:
    """Return the same with the APIs and versions of the inter-broker listener.

    Brokers of Kafka ask for them before they send AddPartitionsToTxn to a transaction coordinator, or
    AllocateProducerIds to the controller.
    """
    advertised = {row[0]: row for row in advertised_to_clients()}
    for key, api in INTER_BROKER.items():
        _, oldest, newest = advertised.get(key, (key, api.oldest, api.newest))
        advertised[key] = key, min(oldest, api.oldest), max(newest, api.newest)
    return sorted(advertised.values())


def name_of(key: int) -> str:
    """Return the name of an API that clients or other brokers ask for."""
    return (APIS.get(key) or INTER_BROKER[key]).name
