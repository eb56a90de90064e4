"""What a client may do, as a broker without access rules answers it: everything there is (KIP-430).

The bits are Kafka's AclOperation codes, of those that a kind of resource has.
"""

_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS = range(3, 12)
_IDEMPOTENT_WRITE = 12

NOT_ASKED = -(2**31)


def operations(asked: bool, allowed: int) -> int:
    """What an answer says: nothing, to who did not ask."""
    return allowed if asked else NOT_ASKED


def _bits(*operations: int) -> int:
    return sum(1 << each for each in operations)


TOPIC = _bits(_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS)
GROUP = _bits(_READ, _DELETE, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS)
CLUSTER = _bits(
    _CREATE, _ALTER, _DESCRIBE, _CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE
)
