"""The operations that a client may do: on a broker without access rules, all of them (KIP-430).

The bits are Kafka's AclOperation codes, limited to those that a kind of resource has.
"""

_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS = range(3, 12)
_IDEMPOTENT_WRITE = 12

NOT_ASKED = -(2**31)


def operations(is_requested: bool, allowed: int) -> int:
    """Return the operations if the client asked for them, else NOT_ASKED."""
    return allowed if is_requested else NOT_ASKED


def _bits(*operations: int) -> int:
    return sum(1 << operation for operation in operations)


TOPIC = _bits(_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS)
GROUP = _bits(_READ, _DELETE, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS)
CLUSTER = _bits(
    _CREATE, _ALTER, _DESCRIBE, _CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE
)
