"""Who may change and read the nodes of a cluster with `zookeeper.set.acl`: as in Kafka 3.9 (ZkData.scala).

Brokers alone change nodes, and everyone reads them. Nodes with hashes of passwords, and with settings of brokers, are
the brokers' alone. Consumers of Kafka 0.8 write below /consumers, which stays open.
"""

from dataclasses import replace

from broker.cluster.acl_documents import ACL_CHANGES, ACLS, EXTENDED_ACL_CHANGES
from broker.cluster.adoption_marker import ADOPTION
from broker.cluster.config_entity import CONFIG
from broker.cluster.documents import (
    CONTROLLER,
    CONTROLLER_EPOCH,
    FEATURE,
    ISR_CHANGES,
    LOG_DIR_EVENTS,
    PRODUCER_ID_BLOCK,
)
from broker.cluster.shared_secret import SHARED_SECRET
from coordination.access import Access

OPEN_PATHS = ("/consumers",)
SECRET_PATHS = (f"{CONFIG}/users", f"{CONFIG}/brokers", "/delegation_token/tokens", SHARED_SECRET)
ROOTS = (
    "/admin",
    "/brokers",
    "/cluster",
    CONFIG,
    CONTROLLER,
    CONTROLLER_EPOCH,
    ISR_CHANGES,
    PRODUCER_ID_BLOCK,
    LOG_DIR_EVENTS,
    "/delegation_token",
    FEATURE,
    ACLS,
    "/kafka-acl-extended",
    ACL_CHANGES,
    EXTENDED_ACL_CHANGES,
    ADOPTION,
    SHARED_SECRET,
)
"""The nodes below which a cluster keeps all others."""


def cluster_access(access: Access, *, set_acl: bool) -> Access:
    """Return `access` with the rules for the nodes of a cluster. It protects nodes if it did so before."""
    return replace(access, set_acl=set_acl or access.set_acl, secret_paths=SECRET_PATHS, open_paths=OPEN_PATHS)
