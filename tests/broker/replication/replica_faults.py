"""Leaders that break one rule each, for the replica model (replica_model.py), which must find them."""

from dataclasses import replace

from broker.replication.partition import Partition


class RemovalCountsAtOnce(Partition):
    """A member that is proposed to leave the ISR holds the high watermark no longer (R1)."""

    def _move_replicated_to(self):
        state = self.state
        if self._proposed is not None:
            self.state = state._replace(isr=tuple(member for member in state.isr if member in self._proposed))
        super()._move_replicated_to()
        self.state = state


class AdditionCountsLate(Partition):
    """A member that is proposed to join the ISR does not hold the high watermark before that is granted (R1)."""

    def _move_replicated_to(self):
        proposed, self._proposed = self._proposed, None
        super()._move_replicated_to()
        self._proposed = proposed


class ElrNotWaitedFor(Partition):
    """The high watermark moves although the ELR has members (R1)."""

    def _move_replicated_to(self):
        state = self.state
        self.state = state._replace(elr=())
        super()._move_replicated_to()
        self.state = state


class MinIsrNotWaitedFor(Partition):
    """The high watermark moves although the ISR is below its minimum (R1)."""

    def _move_replicated_to(self):
        config = self.log.config
        self.log.config = replace(config, min_insync_replicas=1)
        super()._move_replicated_to()
        self.log.config = config


class JoinsBehindTheHighWatermark(Partition):
    """A follower joins the ISR wherever it is (R3)."""

    def _is_in_sync(self, follower):
        return True


class RefusedProposalIsDropped(Partition):
    """A proposal counts no longer once an answer is lost (E6)."""

    def refused(self, leader_epoch, now):
        if self._is_proposed_in(leader_epoch):
            self._proposed = None


class HighWatermarkOfTheLogsEnd(Partition):
    """A new leader takes its log's end as committed (R1, KIP-207)."""

    def lead(self, state, now):
        self.log.move_replicated_to(self.log.log_end_offset)
        return super().lead(state, now)


FAULTS = (
    RemovalCountsAtOnce,
    AdditionCountsLate,
    ElrNotWaitedFor,
    MinIsrNotWaitedFor,
    JoinsBehindTheHighWatermark,
    RefusedProposalIsDropped,
    HighWatermarkOfTheLogsEnd,
)
