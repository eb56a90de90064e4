"""Every API of a broker of Apache Kafka 4.3, why some are not served here, and other differences from Kafka.

`flakelog compat` prints it beside the APIs served (broker.engine.api_table), and docs/compat.md is made from it. The
module is data.
"""

KAFKA = "4.3"

# API key: (name, lowest version, highest version)
KAFKA_APIS: dict[int, tuple[str, int, int]] = {
    0: ("Produce", 3, 13),
    1: ("Fetch", 4, 18),
    2: ("ListOffsets", 1, 11),
    3: ("Metadata", 0, 13),
    8: ("OffsetCommit", 2, 10),
    9: ("OffsetFetch", 1, 10),
    10: ("FindCoordinator", 0, 6),
    11: ("JoinGroup", 0, 9),
    12: ("Heartbeat", 0, 4),
    13: ("LeaveGroup", 0, 5),
    14: ("SyncGroup", 0, 5),
    15: ("DescribeGroups", 0, 6),
    16: ("ListGroups", 0, 5),
    17: ("SaslHandshake", 0, 1),
    18: ("ApiVersions", 0, 4),
    19: ("CreateTopics", 2, 7),
    20: ("DeleteTopics", 1, 6),
    21: ("DeleteRecords", 0, 2),
    22: ("InitProducerId", 0, 5),
    23: ("OffsetForLeaderEpoch", 2, 4),
    24: ("AddPartitionsToTxn", 0, 5),
    25: ("AddOffsetsToTxn", 0, 4),
    26: ("EndTxn", 0, 5),
    27: ("WriteTxnMarkers", 1, 2),
    28: ("TxnOffsetCommit", 0, 5),
    29: ("DescribeAcls", 1, 3),
    30: ("CreateAcls", 1, 3),
    31: ("DeleteAcls", 1, 3),
    32: ("DescribeConfigs", 1, 4),
    33: ("AlterConfigs", 0, 2),
    34: ("AlterReplicaLogDirs", 1, 2),
    35: ("DescribeLogDirs", 1, 5),
    36: ("SaslAuthenticate", 0, 2),
    37: ("CreatePartitions", 0, 3),
    38: ("CreateDelegationToken", 1, 3),
    39: ("RenewDelegationToken", 1, 2),
    40: ("ExpireDelegationToken", 1, 2),
    41: ("DescribeDelegationToken", 1, 3),
    42: ("DeleteGroups", 0, 2),
    43: ("ElectLeaders", 0, 2),
    44: ("IncrementalAlterConfigs", 0, 1),
    45: ("AlterPartitionReassignments", 0, 1),
    46: ("ListPartitionReassignments", 0, 0),
    47: ("OffsetDelete", 0, 0),
    48: ("DescribeClientQuotas", 0, 1),
    49: ("AlterClientQuotas", 0, 1),
    50: ("DescribeUserScramCredentials", 0, 0),
    51: ("AlterUserScramCredentials", 0, 0),
    55: ("DescribeQuorum", 0, 2),
    57: ("UpdateFeatures", 0, 2),
    60: ("DescribeCluster", 0, 2),
    61: ("DescribeProducers", 0, 0),
    64: ("UnregisterBroker", 0, 0),
    65: ("DescribeTransactions", 0, 0),
    66: ("ListTransactions", 0, 2),
    68: ("ConsumerGroupHeartbeat", 0, 1),
    69: ("ConsumerGroupDescribe", 0, 1),
    71: ("GetTelemetrySubscriptions", 0, 0),
    72: ("PushTelemetry", 0, 0),
    74: ("ListConfigResources", 0, 1),
    75: ("DescribeTopicPartitions", 0, 0),
    76: ("ShareGroupHeartbeat", 1, 1),
    77: ("ShareGroupDescribe", 1, 1),
    78: ("ShareFetch", 1, 2),
    79: ("ShareAcknowledge", 1, 2),
    80: ("AddRaftVoter", 0, 1),
    81: ("RemoveRaftVoter", 0, 0),
    83: ("InitializeShareGroupState", 0, 0),
    84: ("ReadShareGroupState", 0, 0),
    85: ("WriteShareGroupState", 0, 1),
    86: ("DeleteShareGroupState", 0, 0),
    87: ("ReadShareGroupStateSummary", 0, 1),
    88: ("StreamsGroupHeartbeat", 0, 0),
    89: ("StreamsGroupDescribe", 0, 0),
    90: ("DescribeShareGroupOffsets", 0, 1),
    91: ("AlterShareGroupOffsets", 0, 0),
    92: ("DeleteShareGroupOffsets", 0, 0),
}

_AUTHENTICATION = "delegation tokens are not served"
_QUORUM = "controllers are not a Raft quorum: any broker may become the controller"
_SHARE = "share groups (KIP-932) are not served"

# Why an API is not served.
NOT_SERVED = {
    **dict.fromkeys(
        (
            "CreateDelegationToken",
            "RenewDelegationToken",
            "ExpireDelegationToken",
            "DescribeDelegationToken",
        ),
        _AUTHENTICATION,
    ),
    **dict.fromkeys(
        (
            "AddRaftVoter",
            "RemoveRaftVoter",
        ),
        _QUORUM,
    ),
    **dict.fromkeys(
        (
            "ShareGroupHeartbeat",
            "ShareGroupDescribe",
            "ShareFetch",
            "ShareAcknowledge",
            "InitializeShareGroupState",
            "ReadShareGroupState",
            "WriteShareGroupState",
            "DeleteShareGroupState",
            "ReadShareGroupStateSummary",
            "DescribeShareGroupOffsets",
            "AlterShareGroupOffsets",
            "DeleteShareGroupOffsets",
        ),
        _SHARE,
    ),
    **dict.fromkeys(
        (
            "ConsumerGroupHeartbeat",
            "ConsumerGroupDescribe",
        ),
        "groups of KIP-848 are not served; clients use the classic protocol",
    ),
    **dict.fromkeys(
        (
            "StreamsGroupHeartbeat",
            "StreamsGroupDescribe",
        ),
        "streams groups (KIP-1071) are not served; Kafka Streams uses the classic protocol",
    ),
    **dict.fromkeys(
        (
            "GetTelemetrySubscriptions",
            "PushTelemetry",
        ),
        "clients push no metrics (KIP-714); those that ask are told so by ApiVersions",
    ),
}

# Differences that a user of Kafka would not expect: (subject, behaviour here).
DIFFERENCES = (
    (
        "Nodes",
        "One, or several with `zookeeper.connect` or `--processes`, as in Kafka 3.9 with ZooKeeper. Copies of a "
        "partition stay on the brokers that its topic was made with. In a server alone a start after a crash begins a "
        "new leader epoch in each partition; in Kafka, a start after a clean stop does so too. UnregisterBroker of a "
        "broker that runs is refused; Kafka does it, and has partitions without a leader then. A partition whose disk "
        "has failed has no leader, as there, and keeps its leader epoch; Kafka begins a new one.",
    ),
    (
        "ZooKeeper away",
        "A broker issues only ids that ZooKeeper has confirmed beforehand, because ids must never repeat. So after "
        "`flakelog.ids.lead.ms` (30 s) without ZooKeeper it refuses Produce, commits and transactions with "
        "REQUEST_TIMED_OUT, until ZooKeeper is back; Kafka goes on writing. Reads go on.",
    ),
    (
        "Listeners",
        "PLAINTEXT, SSL, SASL_PLAINTEXT and SASL_SSL, and on this machine only unless `listeners` says more. Without "
        "`inter.broker.listener.name` brokers use the first one.",
    ),
    (
        "SASL",
        "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER. GSSAPI, Kafka's default, is refused by name, as are "
        "delegation tokens. OAUTHBEARER takes signed tokens only; Kafka takes unsigned ones unless it has a validator. "
        "An unknown user of SCRAM gets a salt and is refused at its proof, as a wrong password is; Kafka refuses it at "
        "its first message. Only PLAIN needs JAAS text. A client has `flakelog.authentication.timeout.ms` to "
        "authenticate.",
    ),
    (
        "TLS",
        "It is OpenSSL's. Key stores are PEM or PKCS#12; one of the old JKS format is refused with the command that "
        "converts it. Suites without forward secrecy and versions before TLSv1.2 are refused by name. The suites of "
        "TLSv1.3 are all or none. A changed file of a certificate is taken within a second; Kafka has to be told. "
        "Where brokers reach each other, a certificate that has expired can be replaced without a restart; Kafka "
        "refuses the new one, because it cannot shake hands with the old one.",
    ),
    (
        "Access rules and quotas",
        "StandardAuthorizer checks every API as Kafka does; AclAuthorizer, the name of older files, means the same. "
        "More rules than flakelog.max.acls are refused. The line of the audit log does not name the rule. Quotas "
        "hold as in Kafka; request_percentage is of the one thread there is. Of a Fetch the records count, without "
        "what is around them; a batch larger than all windows let through is sent once nothing else was, and its time "
        "waited for, where Kafka never sends it.",
    ),
    (
        "Envelope",
        "Brokers of Flakelog send it to each other for their consoles: the connection then acts for the principal in "
        "it, without a request inside. Kafka puts each request in one, and sends it to a controller of a quorum. Both "
        "need ClusterAction.",
    ),
    ("Groups", "The classic protocol; clients that prefer group.protocol=consumer must say classic."),
    (
        "Transactions",
        "As in Kafka with transaction.version=1: a partition or group is added before it is written to. Produce v12 "
        "and TxnOffsetCommit v5, which Kafka lets add it by themselves, are refused with TRANSACTION_ABORTABLE. After "
        "a crash a transactional id gets a new producer id at its next InitProducerId.",
    ),
    (
        "Topics made by asking",
        "Metadata that makes a topic answers with it, and FindCoordinator with the node; Kafka has clients ask again.",
    ),
    (
        "Records of a batch",
        "Of a batch with more than 16 records only the lengths of the records are checked, unless "
        "`flakelog.validate.records` is full or the topic asks something of them; Kafka opens all. "
        "Some batches are refused that Kafka takes: offsets that are not 0, 1, 2 "
        "in an uncompressed batch, integers of more than 32 bits, lengths below -1, records with more headers than "
        "`flakelog.max.record.headers`, records that unpack to more than `flakelog.max.unpacked.batch.bytes`, and "
        "bytes after an LZ4 frame. Bytes that do not unpack are INVALID_RECORD; Kafka answers UNKNOWN_SERVER_ERROR.",
    ),
    (
        "Records in zstd",
        "A topic with compression.type=zstd is refused to clients before Fetch v10; Kafka 4 sends what they cannot "
        "read.",
    ),
    (
        "Ids",
        "Every message has a 64-bit Snowflake id, which stock clients do not see; one process stamps at most 4.096 "
        "million a second. Ids rise with the offset, so a partition whose last id is ahead of the clock refuses "
        "messages with REQUEST_TIMED_OUT until the clock has reached it, or until flakelog.ids.log.max.ahead.ms lets "
        "it go on; readiness answers 503 meanwhile.",
    ),
    (
        "Files",
        "Segments and their indexes are in Kafka's format, so its dump tool reads them; beside them are files of our "
        "own, and neither server opens the other's directory.",
    ),
    ("Settings", "A name that Kafka does not know either is an error; Kafka takes it with a warning."),
    (
        "Log levels and client metrics",
        "They are not kept: DescribeConfigs and IncrementalAlterConfigs answer INVALID_REQUEST for them.",
    ),
    (
        "Settings of one listener",
        "`listener.name.NAME.max.connections` and `max.connection.creation.rate` hold from the start on and cannot be "
        "altered at run time; those of TLS can. All others are for all listeners, and refused for one.",
    ),
    (
        "`flush.messages` above 1",
        "The message that reaches the number has a sync begin, and is answered meanwhile; Kafka syncs first. With 1, "
        "as there, each is answered when it is on the disk.",
    ),
    (
        "Batches and offsets of a transaction",
        "Each is held to the transactional id that its request names; Kafka looks at the first batch in a partition, "
        "and at the first offsets in a group.",
    ),
    ("Too many connections", "One past `max.connections` is closed at once; Kafka lets it wait in the backlog."),
    (
        "Limits of the machine",
        "A server that is not told `max.connections` and `queued.max.request.bytes` takes numbers that fit the "
        "machine: half of the files it may open, at most a connection for each 64 KiB of memory, and an eighth of the "
        "memory. Kafka has no limits then. A fifth of the files it may open are for partitions, and those of silent "
        "partitions are closed; Kafka keeps all open. Partitions past `flakelog.max.partitions` are refused with "
        "INVALID_PARTITIONS.",
    ),
    (
        "A request that stops in its middle",
        "Its connection is closed unless a 32nd of it arrives in each `flakelog.queued.request.ms`; Kafka keeps it for "
        "`connections.max.idle.ms`.",
    ),
    ("Metrics", "Prometheus text over HTTP; no JMX."),
    ("Settings of groups", "All are for the protocol of KIP-848; they are refused with INVALID_CONFIG."),
    ("Long names", "Those of groups, their members and transactional ids have 16,384 bytes at most; in Kafka 32,767."),
    (
        "What stands in a request twice",
        "A partition is answered as often as it is named, where Kafka has one answer or puts answers together, and a "
        "topic without partitions is answered without any; of two batches for one partition Kafka appends the last.",
    ),
    (
        "Large requests",
        "One that names more than `flakelog.max.request.partitions` (10,000), or of an API other than Produce, Fetch "
        "and ListOffsets with more than `flakelog.max.request.items` (50,000) array items or "
        "`flakelog.max.cold.request.bytes`, closes its connection, and the log says why; Kafka takes up to "
        "socket.request.max.bytes.",
    ),
    (
        "What is described twice",
        "A group, a transactional id, or a partition's producers, named twice in a request to describe them, are "
        "answered once, as is a group whose offsets are all asked for; Kafka repeats the answer.",
    ),
    (
        "Requests that are none",
        "A bound or an enumeration out of range that has no code of its own (max_bytes of -1, isolation level 2, ACLs "
        "of resource type 0) is UNKNOWN_SERVER_ERROR, no answer or a closed connection in Kafka; here it is refused by "
        "name, or passed over where nothing depends on it.",
    ),
    (
        "Large batches",
        "One that is larger than segment.bytes, but not than max.message.bytes, is taken, and has a segment of its "
        "own; Kafka refuses it with RECORD_LIST_TOO_LARGE.",
    ),
    (
        "Patterns of transactional ids",
        "RE2's syntax without word boundaries, classes of Unicode and (?m); one that would take longer than a second "
        "is refused with INVALID_REGULAR_EXPRESSION, as is one that is none.",
    ),
    ("Plug-ins", "None: no Java class is loaded. What would change an answer by one is refused at the start."),
)
