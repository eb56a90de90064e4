"""The secret behind the salts of unknown users, which all brokers of a cluster share, at /flakelog_sasl_secret.

If each broker had another secret, an unknown user would get another salt at each, and a known user the same at all. A
program that can read the node can also read the names of users, below /config/users.
"""

from broker.cluster.procedure import Procedure, read_node
from coordination.port import Create

SHARED_SECRET = "/flakelog_sasl_secret"


def shared_secret(own: bytes) -> Procedure[bytes]:
    """Return the secret of the cluster. The first broker stores `own` as that secret."""
    while (node := (yield from read_node(SHARED_SECRET))) is None:
        yield (Create(SHARED_SECRET, own),)  # another broker may be faster, so read what is there
    return node.data
