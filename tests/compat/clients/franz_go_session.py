"""A franz-go session that calls every API, all in the oldest or all in the newest version that the broker serves.

It produces frames for tests/golden, so that another project's encoder covers both ends of each row of the API table.
Requests that only administrators and other brokers send are given field by field, with the names of franz-go's kmsg.
"""

from broker.engine.api_table import APIS
from tests.compat.clients.stock_go import stock_go

TOPIC = "flights"
GROUP = "readers"
PARTITIONS = 2
TIME_MS = 1_700_000_000_000
HEARTBEAT_MS = 100
WAIT_MS = 60_000
NODE = 1
FEATURE = {"Feature": "metadata.version", "MaxVersionLevel": 25, "UpgradeType": 1}
RULE = {"Principal": "User:ann", "Host": "*", "Operation": "READ", "PermissionType": "ALLOW"}
RULES_ON = {"ResourceType": "TOPIC", "ResourceName": TOPIC, "ResourcePatternType": "LITERAL"}
CONFIGURED = {"ResourceType": "TOPIC", "ResourceName": TOPIC}
SALT = "c2FsdHNhbHRzYWx0"
NO_ID = [0] * 16
KEYS = {api.name: key for key, api in APIS.items()}


def oldest(address):
    _Session(address, {key: api.oldest for key, api in APIS.items()}).run()


def newest(address):
    _Session(address, {key: api.newest for key, api in APIS.items()}).run()


class _Session:
    def __init__(self, address, versions):
        self._common = {"address": address, "versions": versions}
        self._topic_id = NO_ID

    def run(self):
        with stock_go() as go:
            self._go = go
            self._topic()
            self._clients()
            self._reads()
            self._offsets()
            self._transaction()
            self._hanging_transaction()
            self._access()
            self._settings()
            self._node()
            self._end()

    def _do(self, name, **arguments):
        return self._go.ask(name, **self._common | arguments)

    def _ask(self, api, **fields):
        return self._do("ask", key=KEYS[api], fields=fields)

    def _topic(self):
        configs = [{"Name": "retention.ms", "Value": "-1"}]
        topic = {"Topic": TOPIC, "NumPartitions": PARTITIONS, "ReplicationFactor": 1, "Configs": configs}
        answer = self._ask("CreateTopics", Topics=[topic], TimeoutMillis=WAIT_MS)
        self._topic_id = answer["Topics"][0]["TopicID"]

    def _clients(self):
        written = {"topic": TOPIC, "timestamp": TIME_MS}
        self._do("produce", values=["v0", "v1", "v2"], **written)
        self._transact(id="payments", values=["paid"], end="commit", **written)
        self._transact(id="payments", values=["not"], end="abort", **written)
        self._do("read", topic=TOPIC, group=GROUP, count=5, heartbeat=HEARTBEAT_MS)

    def _transact(self, **arguments):
        """Run a transaction with FindCoordinator v1 or later, because v0 knows only groups."""
        key, versions = KEYS["FindCoordinator"], self._common["versions"]
        return self._do("transact", versions=versions | {key: max(versions[key], 1)}, **arguments)

    def _reads(self):
        partition = {"Partition": 0, "CurrentLeaderEpoch": -1}
        self._ask("Metadata", Topics=[{"Topic": TOPIC}])
        self._ask("ListOffsets", ReplicaID=-1, **_of_topic(partition | {"Timestamp": -1}))
        self._ask("OffsetForLeaderEpoch", ReplicaID=-1, **_of_topic(partition | {"LeaderEpoch": 0}))

    def _offsets(self):
        partitions = {"Topic": TOPIC, "TopicID": self._topic_id, "Partitions": [0]}
        offset = {"Partition": 0, "Offset": 1, "LeaderEpoch": -1, "Metadata": "by hand"}
        topic = partitions | {"Partitions": [offset]}
        self._ask("FindCoordinator", CoordinatorKey=GROUP, CoordinatorKeys=[GROUP])
        self._ask("OffsetCommit", Group=GROUP, Generation=-1, Topics=[topic])
        group = {"Group": GROUP, "MemberEpoch": -1, "Topics": [partitions]}
        self._ask("OffsetFetch", Group=GROUP, Topics=[partitions], Groups=[group])
        self._ask("DescribeGroups", Groups=[GROUP])
        self._ask("ListGroups")

    def _transaction(self):
        """Send each request of a transaction explicitly, because franz-go itself sends only what its rules need."""
        ids = {"TransactionalID": "by hand"}
        made = self._ask("InitProducerId", TransactionTimeoutMillis=WAIT_MS, ProducerID=-1, ProducerEpoch=-1, **ids)
        ids |= {"ProducerID": made["ProducerID"], "ProducerEpoch": made["ProducerEpoch"]}
        self._ask("AddPartitionsToTxn", **ids, **_of_topic(1))
        self._ask("AddOffsetsToTxn", Group=GROUP, **ids)
        offset = {"Partition": 0, "Offset": 2, "LeaderEpoch": -1}
        self._ask("TxnOffsetCommit", Group=GROUP, Generation=-1, **ids, **_of_topic(offset))
        self._ask("DescribeTransactions", TransactionalIDs=["by hand"])
        self._ask("ListTransactions", DurationFilterMillis=-1)
        self._ask("EndTxn", Commit=True, **ids)

    def _hanging_transaction(self):
        producer, epoch = self._transact(
            id="hanging", values=["lost"], partition=1, topic=TOPIC, timestamp=TIME_MS, end=""
        )
        self._ask("DescribeProducers", **_of_topic(1))
        marker = {"ProducerID": producer, "ProducerEpoch": epoch, "Committed": False, "CoordinatorEpoch": 0}
        self._ask("WriteTxnMarkers", Markers=[marker | _of_topic(1)])

    def _access(self):
        self._ask("SaslHandshake", Mechanism="PLAIN")
        self._ask("SaslAuthenticate", SASLAuthBytes=SALT)
        self._ask("DescribeAcls", **RULES_ON, **RULE)
        self._ask("CreateAcls", Creations=[RULES_ON | RULE])
        self._ask("DeleteAcls", Filters=[RULES_ON | RULE])
        self._ask("DescribeUserScramCredentials")
        secret = {"Name": "ann", "Mechanism": 1, "Iterations": 4096, "Salt": SALT, "SaltedPassword": SALT}
        self._ask("AlterUserScramCredentials", Upsertions=[secret])

    def _settings(self):
        change = {"Name": "segment.ms", "Value": "5000"}
        self._ask("DescribeConfigs", Resources=[CONFIGURED])
        self._ask("AlterConfigs", Resources=[CONFIGURED | {"Configs": [change]}])
        self._ask("IncrementalAlterConfigs", Resources=[CONFIGURED | {"Configs": [change | {"Op": "SET"}]}])
        self._ask("ListConfigResources")
        quota = {"Entity": [{"Type": "user", "Name": "ann"}], "Ops": [{"Key": "producer_byte_rate", "Value": 1024}]}
        self._ask("AlterClientQuotas", Entries=[quota])
        self._ask("DescribeClientQuotas", Components=[{"EntityType": "user", "MatchType": "ANY"}])
        self._ask("UpdateFeatures", FeatureUpdates=[FEATURE], TimeoutMillis=WAIT_MS)

    def _node(self):
        """Ask the node about itself and about the placement of its partitions."""
        self._ask("DescribeCluster", EndpointType=1)
        quorum = {"Topic": "__cluster_metadata", "Partitions": [{"Partition": 0}]}
        self._ask("DescribeQuorum", Topics=[quorum])
        self._ask("DescribeTopicPartitions", Topics=[{"Topic": TOPIC}], ResponsePartitionLimit=PARTITIONS)
        directory = self._ask("DescribeLogDirs")["Dirs"][0]["Dir"]
        self._ask("AlterReplicaLogDirs", Dirs=[{"Dir": directory} | _of_topic(0)])
        self._ask("UnregisterBroker", BrokerID=NODE + 1)
        self._ask("ElectLeaders", TimeoutMillis=WAIT_MS, **_of_topic(0))
        moved = _of_topic({"Partition": 0, "Replicas": [NODE]})
        self._ask("AlterPartitionReassignments", TimeoutMillis=WAIT_MS, **moved)
        self._ask("ListPartitionReassignments", TimeoutMillis=WAIT_MS)

    def _end(self):
        self._ask("CreatePartitions", Topics=[{"Topic": TOPIC, "Count": PARTITIONS + 1}], TimeoutMillis=WAIT_MS)
        self._ask("DeleteRecords", TimeoutMillis=WAIT_MS, **_of_topic({"Partition": 0, "Offset": 1}))
        self._ask("OffsetDelete", Group=GROUP, **_of_topic({"Partition": 0}))
        self._ask("DeleteGroups", Groups=[GROUP])
        self._ask("DeleteTopics", TopicNames=[TOPIC], Topics=[{"Topic": TOPIC}], TimeoutMillis=WAIT_MS)


def _of_topic(partition):
    """Return the field that names one partition of the topic in any request."""
    return {"Topics": [{"Topic": TOPIC, "Partitions": [partition]}]}
