"""The members with all committed records, as far as a controller can know: the oracle's ISR and ELR (KIP-966).

A member that leaves an ISR which is then below min.insync.replicas still has all that is committed, because the high
watermark stands still. It may lead until an ISR of that size is granted, unless its machine has lost power or its disk
has failed, or its broker comes back untrusted (rule W2). Partitions whose min.insync.replicas was changed are left out:
leader and controller hear of that at different times.

A broker may come back untrusted although its disk has everything. Its directory cannot tell, because its last life
ended before the first order, and the `state` names that life. A member whose disk had no room for a log is not counted
until it joins the ISR anew, because a broker without a log cannot say that it lost nothing. It may have made the log
when the controller hears that it could not.
"""

from broker.cluster.documents import NO_LIFE, Registration, broker_path


class SafeMembers:
    """The replicas of each partition that may lead although they left the ISR, with the lives in which they had all.

    `has_log` returns True if a broker's disk has files of a partition.
    """

    def __init__(self, has_log):
        self._safe = {}
        self._has_log = has_log
        self._without_room = set()
        """(broker, partition) whose log was ordered while the broker's disk was full."""

    def of(self, partition):
        return self._safe.get(partition, {})

    def decided(self, partition, earlier, state, min_isr, *, is_unclean):
        """Note another state of a partition. `min_isr` is None if it was changed."""
        self._without_room -= {(member, partition) for member in state.isr if member not in earlier.isr}
        if is_unclean or min_isr is None or len(state.isr) >= min_isr:
            self._safe.pop(partition, None)
        else:
            leave = [m for m in earlier.isr if m not in state.isr and self._had_log(m, partition)]
            safe = {**self.of(partition), **{member: earlier.lives.get(member) for member in leave}}
            lives = {member: state.lives.get(member, life) for member, life in safe.items()}
            self._safe[partition] = {member: life for member, life in lives.items() if member not in state.isr}

    def _had_log(self, member, partition):
        return (member, partition) not in self._without_room and self._has_log(member, partition)

    def ordered(self, broker_id, partition):
        """Note that a broker whose disk is full takes an order for a partition."""
        if not self._has_log(broker_id, partition):
            self._without_room.add((broker_id, partition))

    def registered(self, broker_id, node):
        """Note a broker's registration: in this life and all later ones it is as trusted as it says now."""
        for members in self._safe.values():
            if broker_id in members and not is_trusted(members[broker_id], broker_id, node):
                del members[broker_id]

    def distrust(self, broker_id):
        """Note that a broker may lack what it had."""
        for members in self._safe.values():
            members.pop(broker_id, None)

    def forget(self, topic):
        self._safe = {partition: members for partition, members in self._safe.items() if partition.topic != topic}
        self._without_room = {key for key in self._without_room if key[1].topic != topic}


def is_trusted(recorded, broker_id, node):
    """Return True if a broker with this node may lead as a member whose recorded life this is (rule W2).

    `node` is None if the broker is not registered, and `recorded` is None if no life is.
    """
    if node is None:
        return False
    life = Registration.decode(broker_path(broker_id), node.data).life
    return recorded == node.czxid or (life.whole and (recorded is None or NO_LIFE < recorded <= life.last))
