"""Kafka's texts of errors, which scripts search for, as Apache Kafka 4.3.1 answers the cases of the table.

Each number is an N. Our message begins with the text, so a text ends where ours continues differently.
tests/broker/test_error_texts.py holds our answers to them, and tests/compat/clients/test_errors_as_kafka.py a real
node's.
"""

import re

from broker.wire.schema import plan_of

TEXTS = {
    "Produce": (
        ("INVALID_RECORD", "One or more records have been rejected due to N record errors in total"),
        ("INVALID_TIMESTAMP", "One or more records have been rejected due to invalid timestamp"),
    ),
    "DescribeProducers": (
        ("UNKNOWN_TOPIC_OR_PARTITION", "This server does not host this topic-partition."),
        (
            "INVALID_TOPIC_EXCEPTION",
            "Topic name is invalid: 'a/b' contains one or more characters other than ASCII alphanumerics, '.', "
            "'_' and '-'",
        ),
    ),
    "CreateTopics": (
        ("TOPIC_ALREADY_EXISTS", "Topic 'flights-N' already exists."),
        (
            "INVALID_TOPIC_EXCEPTION",
            "Topic name is invalid: 'a/b' contains one or more characters other than ASCII alphanumerics, '.', "
            "'_' and '-'",
        ),
        ("INVALID_TOPIC_EXCEPTION", "Topic 'a_N' collides with existing topic: a.N"),
        ("INVALID_PARTITIONS", "Number of partitions was set to an invalid non-positive value."),
        (
            "INVALID_REPLICATION_FACTOR",
            "Unable to replicate the partition N time(s): The target replication factor of N cannot be reached "
            "because only N broker(s) are registered",
        ),
        ("INVALID_REPLICATION_FACTOR", "Replication factor must be larger than N, or -N to use the default value."),
        (
            "INVALID_REPLICA_ASSIGNMENT",
            "The manual partition assignment includes broker N, but no such broker is registered.",
        ),
        ("INVALID_REPLICA_ASSIGNMENT", "The manual partition assignment includes an empty replica list."),
        ("INVALID_REQUEST", "A manual partition assignment was specified, but numPartitions was not set to -N."),
        ("INVALID_REQUEST", "Duplicate topic name."),
        ("INVALID_REQUEST", "Creation of internal topic __cluster_metadata is prohibited."),
        ("INVALID_CONFIG", "Unknown topic config name: no.such.setting"),
        ("INVALID_CONFIG", "Invalid value soon for configuration retention.ms: Not a number of type LONG"),
        ("INVALID_CONFIG", "Null value not supported for topic configs: retention.ms"),
        ("TOPIC_ALREADY_EXISTS", "Topic '__consumer_offsets' already exists."),
        ("POLICY_VIOLATION", "Excessively large number of partitions per request."),
    ),
    "DeleteTopics": (
        ("UNKNOWN_TOPIC_OR_PARTITION", "This server does not host this topic-partition."),
        ("UNKNOWN_TOPIC_ID", "This server does not host this topic ID."),
        ("INVALID_REQUEST", "Duplicate topic name."),
        ("INVALID_REQUEST", "Neither topic name nor id were specified."),
    ),
    "CreatePartitions": (
        ("INVALID_PARTITIONS", "Topic already has N partition(s)."),
        ("INVALID_PARTITIONS", "The topic flights-N currently has N partition(s); N would not be an increase."),
        (
            "INVALID_REPLICA_ASSIGNMENT",
            "The manual partition assignment includes broker N, but no such broker is registered.",
        ),
        (
            "INVALID_REPLICA_ASSIGNMENT",
            "Attempted to add N additional partition(s), but only N assignment(s) were specified.",
        ),
        ("INVALID_REPLICA_ASSIGNMENT", "The manual partition assignment includes an empty replica list."),
        ("INVALID_REQUEST", "Duplicate topic name."),
    ),
    "DescribeConfigs": (
        (
            "INVALID_TOPIC_EXCEPTION",
            "Topic name is invalid: 'a/b' contains one or more characters other than ASCII alphanumerics, '.', "
            "'_' and '-'",
        ),
        ("INVALID_REQUEST", "Unexpected broker id, expected N or empty string, but received N"),
    ),
    "AlterConfigs": (
        ("INVALID_REQUEST", "Default group resources are not allowed."),
        ("UNKNOWN_TOPIC_OR_PARTITION", "The topic 'nowhere' does not exist."),
        ("INVALID_CONFIG", "Unknown topic config name: no.such.setting"),
        ("INVALID_CONFIG", "Invalid value soon for configuration retention.ms: Not a number of type LONG"),
        ("INVALID_REQUEST", "Null value not supported for : retention.ms"),
        ("INVALID_REQUEST", "Unexpected broker id, expected N, but received N"),
        ("INVALID_REQUEST", "Unknown resource type N"),
    ),
    "IncrementalAlterConfigs": (
        ("INVALID_REQUEST", "Default group resources are not allowed."),
        ("UNKNOWN_TOPIC_OR_PARTITION", "The topic 'nowhere' does not exist."),
        ("INVALID_CONFIG", "Unknown topic config name: no.such.setting"),
        ("INVALID_CONFIG", "Invalid value soon for configuration retention.ms: Not a number of type LONG"),
        ("INVALID_REQUEST", "Null value not supported for : retention.ms"),
        ("INVALID_REQUEST", "Unexpected broker id, expected N, but received N"),
        ("INVALID_REQUEST", "Unknown resource type N"),
        ("INVALID_REQUEST", "Each resource must appear at most once."),
        ("INVALID_CONFIG", "Can't APPEND to key retention.ms because its type is not LIST."),
    ),
    "DescribeGroups": (
        ("GROUP_ID_NOT_FOUND", "Group readers-N not found."),
    ),
    "DescribeCluster": (
        (
            "MISMATCHED_ENDPOINT_TYPE",
            "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER",
        ),
        ("UNSUPPORTED_ENDPOINT_TYPE", "Unsupported endpoint type N"),
    ),
    "DescribeQuorum": (
        ("UNKNOWN_TOPIC_OR_PARTITION", "This server does not host this topic-partition."),
    ),
    "ElectLeaders": (
        ("ELECTION_NOT_NEEDED", "Leader election not needed for topic partition."),
        ("UNKNOWN_TOPIC_OR_PARTITION", "No such topic as nowhere"),
        ("UNKNOWN_TOPIC_OR_PARTITION", "No such partition as flights-N-N"),
        ("INVALID_REQUEST", "Unknown election type N"),
    ),
    "AlterPartitionReassignments": (
        (
            "INVALID_REPLICA_ASSIGNMENT",
            "The manual partition assignment includes broker N, but no such broker is registered.",
        ),
        ("INVALID_REPLICA_ASSIGNMENT", "The manual partition assignment includes an empty replica list."),
        ("INVALID_REPLICA_ASSIGNMENT", "The manual partition assignment includes the broker N more than once."),
        ("UNKNOWN_TOPIC_OR_PARTITION", "Unable to find a topic named nowhere."),
        ("UNKNOWN_TOPIC_OR_PARTITION", "Unable to find partition flights-N:N."),
    ),
    "DescribeAcls": (
        ("SECURITY_DISABLED", "No Authorizer is configured on the broker"),
    ),
    "CreateAcls": (
        ("SECURITY_DISABLED", "No Authorizer is configured."),
    ),
    "DeleteAcls": (
        ("SECURITY_DISABLED", "No Authorizer is configured."),
    ),
    "UnregisterBroker": (
        ("BROKER_ID_NOT_REGISTERED", "Broker ID N is not currently registered"),
    ),
    "AlterClientQuotas": (
        ("INVALID_REQUEST", "Invalid empty client quota entity"),
        ("INVALID_REQUEST", "Unhandled client quota entity type: planet"),
        ("INVALID_REQUEST", "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId"),
        ("INVALID_REQUEST", "Invalid configuration key no_such_quota"),
        ("INVALID_REQUEST", "producer_byte_rate cannot be a fractional value."),
        ("INVALID_REQUEST", "Quota producer_byte_rate must be greater than N"),
    ),
    "DescribeClientQuotas": (
        ("INVALID_REQUEST", "Entity type user cannot appear more than once in the filter."),
        ("INVALID_REQUEST", "Unknown match type N"),
        ("INVALID_REQUEST", "Request specified MATCH_TYPE_EXACT, but set match string to null."),
        ("UNSUPPORTED_VERSION", "Unsupported entity type planet"),
    ),
    "AlterUserScramCredentials": (
        ("UNACCEPTABLE_CREDENTIAL", "Too few iterations"),
        ("UNACCEPTABLE_CREDENTIAL", "Too many iterations"),
        ("UNACCEPTABLE_CREDENTIAL", "Username must not be empty"),
        ("UNSUPPORTED_SASL_MECHANISM", "Unknown SCRAM mechanism"),
        ("DUPLICATE_RESOURCE", "A user credential cannot be altered twice in the same request"),
        ("RESOURCE_NOT_FOUND", "Attempt to delete a user credential that does not exist"),
    ),
    "DescribeUserScramCredentials": (
        ("RESOURCE_NOT_FOUND", "Attempt to describe a user credential that does not exist: nobody"),
        ("DUPLICATE_RESOURCE", "Cannot describe SCRAM credentials for the same user twice in a single request: nobody"),
    ),
    "UpdateFeatures": (
        (
            "INVALID_UPDATE_VERSION",
            "The update failed for all features since the following feature had an error: Invalid update "
            "version N for feature metadata.version",
        ),
        (
            "INVALID_UPDATE_VERSION",
            "The update failed for all features since the following feature had an error: Invalid update "
            "version N for feature no.such.feature",
        ),
    ),
}
# Kafka answers these without a text, and its clients then show their own for the code.
CLIENTS_TEXTS = {
    "UNKNOWN_TOPIC_OR_PARTITION": "This server does not host this topic-partition.",
    "UNKNOWN_TOPIC_ID": "This server does not host this topic ID.",
    "REQUEST_TIMED_OUT": "The request timed out.",
    "NO_REASSIGNMENT_IN_PROGRESS": "No partition reassignment is in progress.",
}


def messages_of(entity):
    """Return every message of an error in an answer, in order, without its numbers."""
    messages = []
    for plan in plan_of(type(entity)):
        value = getattr(entity, plan.name)
        if plan.name == "error_message" and value:
            messages.append(re.sub("[0-9]+", "N", value))
        elif plan.nested is not None and value is not None:
            for nested in value if plan.array else (value,):
                messages += messages_of(nested)
    return messages


class Heard:
    """Which of Kafka's texts the messages of a broker began with."""

    def __init__(self):
        self.missing = {(api, text) for api, texts in TEXTS.items() for _, text in texts}
        self.others = []
        """Messages of codes for which clients have a text, and that do not begin with it."""

    def ask(self, case, world):
        """Ask for the error of a case, if Kafka has a text for it."""
        own = [text for code, text in TEXTS.get(case.api, ()) if code == case.code.name]
        clients = CLIENTS_TEXTS.get(case.code.name)
        if case.inside or not (own or clients):
            return
        message = next(iter(messages_of(case.ask(world))), "")
        self.missing -= {(case.api, text) for text in own if message.startswith(text)}
        if message and not own and not message.startswith(clients):
            self.others.append(f"{case.api} {case.code.name}: {message}")
