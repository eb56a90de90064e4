"""A broker with an authorizer, clients with names, and rules that a test gives in a few words."""

from broker.security.authorization.acl import (
    CLUSTER_NAME,
    AclBinding,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from tests.broker.engine_client import EngineBroker

STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def guarded(**settings):
    """Return a broker whose clients need rights; root may do everything."""
    return EngineBroker(
        authorizer_class_name=STANDARD,
        super_users="User:root",
        group_initial_rebalance_delay_ms=0,
        offsets_topic_num_partitions=1,
        transaction_state_log_num_partitions=1,
        **settings,
    )


def client_of(broker, user, **more):
    client = broker.connect(**more)
    client.conn.user = user
    return client


def allow(words, permission=Permission.ALLOW, user="User:ada"):
    """Return a rule for "read topic orders", "alter cluster", or "write topic ord..." (a prefix)."""
    operation, kind, *names = words.split()
    name = names[0] if names else CLUSTER_NAME
    pattern = PatternType.PREFIXED if name.endswith("...") else PatternType.LITERAL
    kind, operation = ResourceType[kind.upper()], Operation[operation.upper()]
    return AclBinding(kind, pattern, name.removesuffix("..."), user, "*", operation, permission)


def grant(broker, *words):
    """Replace all rules by these of ada."""
    broker.services.authorizer.use(frozenset(allow(rule) for rule in words))
    broker.services.hosted.expire()
