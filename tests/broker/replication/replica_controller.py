"""The controller of the replica model: the state of one partition, decided by the rules of the ISR and the ELR.

Brokers are killed and their sessions end, and no power is cut, so each member is trusted. tests/broker/cluster has the
real controller. Events wait in one queue, so a proposal may be older than what the controller has decided since.
"""

from broker.metadata.topic import NO_LEADER, PartitionState
from broker.wire.errors import ErrorCode

REPLICAS = (1, 2, 3)


class ReplicaController:
    """It keeps `state`, and the orders that wait for each broker. `min_isr` is min.insync.replicas as it reads it."""

    def __init__(self, min_isr):
        self.state = PartitionState(REPLICAS[0], 1, REPLICAS, REPLICAS, 1)
        self.min_isr = min_isr
        self.lives = {}
        """The lives (broker epochs) of the brokers that it has registered."""
        self.events = []
        """(broker, life, whether it begins) of the lives that it has not looked at."""
        self.orders = {number: [] for number in REPLICAS}
        """(life, state) of each LeaderAndIsr, in order."""

    # --- lives ---------------------------------------------------------------------------------------------------

    def look(self):
        """Take in the next begin or end of a life."""
        broker, life, begins = self.events.pop(0)
        if begins:
            self.lives[broker] = life
            self.order(broker)
            if self.state.leader == NO_LEADER:
                self._elect(self.state.isr, self.state.elr)
        elif self.lives.get(broker) == life:
            del self.lives[broker]
            self._died(broker)

    def order(self, broker):
        """Send the present state to the life of a broker, again if it has it already."""
        if broker in self.lives:
            self.orders[broker].append((self.lives[broker], self.state))

    def _died(self, broker):
        state = self.state
        isr = tuple(member for member in state.isr if member != broker) or state.isr
        elr = self._elr_after(isr, self.min_isr)
        if broker == state.leader:
            self._elect(isr, elr)
        elif isr != state.isr:
            self._decide(state.leader, isr, elr)

    def _elr_after(self, isr, min_isr):
        """Return the ELR once the ISR is this: the members that leave it, as long as it is too small (KIP-966)."""
        if len(isr) >= min_isr:
            return ()
        return tuple(sorted({*self.state.elr, *self.state.isr} - set(isr)))

    def _elect(self, isr, elr):
        live = [member for member in isr if member in self.lives]
        if live:
            self._decide(live[0], isr, elr)
            return
        live = [member for member in elr if member in self.lives]
        if not live:
            self._decide(NO_LEADER, isr, elr)
            return
        left = () if self.min_isr <= 1 else tuple(sorted({*isr, *elr} - {live[0]}))
        self._decide(live[0], (live[0],), left)

    def _decide(self, leader, isr, elr):
        epoch, partition_epoch = self.state.leader_epoch + 1, self.state.partition_epoch + 1
        self.state = PartitionState(leader, epoch, REPLICAS, isr, partition_epoch, elr)
        for broker in self.lives:
            self.order(broker)

    # --- AlterPartition ------------------------------------------------------------------------------------------

    def alter(self, broker, life, proposal):
        """Return the state after a proposal, or the error."""
        state = self.state
        if self.lives.get(broker) != life:
            return ErrorCode.STALE_BROKER_EPOCH
        if proposal.leader_epoch < state.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        isr = tuple(proposal.isr)
        elr = self._elr_after(isr, proposal.min_isr)
        if set(isr) == set(state.isr) and elr == state.elr:
            return state
        if proposal.partition_epoch < state.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        if not all(life in (-1, self.lives.get(member)) for member, life in proposal.isr.items()):
            return ErrorCode.INELIGIBLE_REPLICA
        if any(member not in self.lives for member in isr):
            return ErrorCode.INELIGIBLE_REPLICA
        self.state = state._replace(isr=isr, elr=elr, partition_epoch=state.partition_epoch + 1)
        return self.state
