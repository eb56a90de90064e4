"""Whether a transaction has a partition (KIP-890): the question to its coordinator, another broker, and the answer.

It is Kafka's VerificationGuard. A producer's state in the log has one question while the producer has no open
transaction there. A marker drops it, so an answer from before the marker lets no batch in after it: the batch finds no
question, and asks again.
"""

from dataclasses import dataclass

from broker.wire.errors import ErrorCode


@dataclass(eq=False, slots=True)
class Verification:
    """The question about one producer and partition. `error` is None until it is answered; NONE lets batches in."""

    transactional_id: str
    producer_id: int
    epoch: int
    lowest_sequence: int
    """The lowest sequence of the batches that were not let in yet. It must come first. If a later batch were appended
    before it, its retry would be out of order for ever."""
    partition: tuple[str, int]
    questions: dict[int, "Verification"]
    """The questions of the partition's log, by producer id."""
    is_asked: bool = False
    error: ErrorCode | None = None

    @property
    def is_pending(self) -> bool:
        """True until the coordinator, once asked, has answered."""
        return self.is_asked and self.error is None

    def ask_again(self) -> None:
        """Let the next batch ask again if the answer was a refusal, because a client is informed of it."""
        if self.error:
            self.error, self.is_asked = None, False

    def expire(self) -> None:
        """Forget a refusal that no batch has come back for."""
        if (self.error or not self.is_asked) and self.questions.get(self.producer_id) is self:
            del self.questions[self.producer_id]
