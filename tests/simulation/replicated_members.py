"""The members with all committed records, as far as a controller can know: the oracle's ISR and ELR (KIP-966).

A member that leaves an ISR which is then below min.insync.replicas still has all that is committed, because the high
watermark stands still. It may lead until an ISR of that size is granted, unless its machine has lost power or its disk
has failed. Partitions whose min.insync.replicas was changed are left out: leader and controller hear of that at
different times.
"""


class SafeMembers:
    """The replicas of each partition that may lead although they left the ISR."""

    def __init__(self):
        self._safe = {}

    def of(self, partition):
        return self._safe.get(partition, set())

    def decided(self, partition, earlier, state, min_isr, *, is_unclean):
        """Note another state of a partition. `min_isr` is None if it was changed."""
        if is_unclean or min_isr is None or len(state.isr) >= min_isr:
            self._safe.pop(partition, None)
        else:
            self._safe[partition] = (self.of(partition) | set(earlier.isr)) - set(state.isr)

    def distrust(self, broker_id):
        """Note that a broker may lack what it had."""
        for members in self._safe.values():
            members.discard(broker_id)

    def forget(self, topic):
        self._safe = {partition: members for partition, members in self._safe.items() if partition.topic != topic}
