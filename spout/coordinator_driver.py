"""Drives the coordinator of a spout: carries its requests to the ports, and the answers back."""

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple, Protocol, cast

from partition_manager.asks import Ask
from partition_manager.coordinator import MessageId, PartitionCoordinator
from partition_manager.entry import Counts, Message
from partition_manager.ports import (
    Answer,
    AwaitShare,
    Bury,
    DeadLetterSink,
    GroupStore,
    LoadOffset,
    OffsetStore,
    RecordFetcher,
    ReleasePartition,
    SaveOffset,
)
from spout.api import Context
from spout.config import SpoutConfig
from spout.work import InstanceFenced

POLL_ROUNDS = 10  # opening a partition takes five successive requests


class Messages(Protocol):
    """The messages of a spout, from their emit to their outcome, as PartitionCoordinator has them."""

    def next(self, now_ms: int) -> tuple[MessageId, Message] | None: ...

    def fan_out(self, id: MessageId, tuples: int) -> object: ...

    def reject(self, id: MessageId, now_ms: int, error: str) -> object: ...

    def ack(self, id: MessageId) -> object: ...

    def ack_many(self, ids: Iterable[MessageId]) -> object: ...

    def fail(self, id: MessageId, now_ms: int, error: str, *, unavailable: bool) -> object: ...


class SpoutPorts(NamedTuple):
    """The ports of a spout. `dead_letters` makes one to the dead-letter topic of that name."""

    fetcher: RecordFetcher
    store: OffsetStore | GroupStore
    dead_letters: Callable[[str], DeadLetterSink]


class CoordinatorDriver:
    """A coordinator and its ports. The coordinator itself settles the messages, at their acks.

    Call `poll` often, and soon after `context.wake` is called because of an answer.
    """

    def __init__(
        self, coordinator: PartitionCoordinator, ports: SpoutPorts, context: Context, config: SpoutConfig
    ) -> None:
        self.messages: Messages = coordinator
        self._coordinator = coordinator
        self._fetcher, self._store, self._make_dead_letters = ports
        self._context = context
        self._config = config
        self._dead_letters: dict[str, DeadLetterSink] = {}  # by the name of the dead-letter topic
        self._answers: deque[tuple[int, Answer]] = deque()  # bounded by the number of outstanding requests
        self._is_fenced = False  # another process has taken the place of this one, and the engine knows

    def poll(self, now_ms: int) -> None:
        """Process answers and send requests, in a few rounds because some ports answer at once."""
        coordinator = self._coordinator
        for _ in range(POLL_ROUNDS):
            while self._answers:
                coordinator.answered(*self._answers.popleft(), now_ms)
                if coordinator.fenced_by and not self._is_fenced:
                    self._is_fenced = True
                    raise InstanceFenced(coordinator.fenced_by)
            asks = coordinator.take_asks(now_ms)
            if not asks:
                break
            for ask in asks:
                self._carry(ask)
        self._fetcher.hold(coordinator.has_enough)
        for note in coordinator.take_notes():
            self._context.log(note.text, note.level)

    def next_deadline_ms(self) -> int | None:
        """Return when a retry, commit or request is due; now if an answer waits."""
        return self._context.now_ms if self._answers else self._coordinator.next_deadline_ms()

    def next_cut_ms(self) -> int | None:
        """Return when messages that are processed are settled next: None, because they are settled at once."""
        return None

    def stop(self, now_ms: int) -> None:
        """Store the progress and release the partitions; `idle` becomes True when that is done."""
        self._coordinator.stop(now_ms)

    @property
    def idle(self) -> bool:
        """Return True if, after `stop`, every partition is stored and released."""
        return self._coordinator.idle

    @property
    def counts(self) -> Counts:
        """Return the counts of message outcomes."""
        return self._coordinator.counts

    def close(self) -> None:
        """Close the ports."""
        self._fetcher.close()
        self._store.close()
        for sink in self._dead_letters.values():
            sink.close()

    def _carry(self, ask: Ask) -> None:
        number, request = ask
        answer = partial(self._answered, number)
        if isinstance(request, Bury):
            self._sink(request.letter.topic).ask(request, answer)
        elif isinstance(request, (LoadOffset, SaveOffset)):
            self._store.ask(request, answer)
        elif isinstance(request, (AwaitShare, ReleasePartition)):
            cast(GroupStore, self._store).ask(request, answer)
        else:
            self._fetcher.ask(request, answer)

    def _answered(self, number: int, answer: Answer) -> None:
        self._answers.append((number, answer))
        self._context.wake()

    def _dead_letter_topic_of(self, topic: str) -> str:
        name = self._config.spout_dead_letter_topic.replace("{topic}", topic)
        assert name, "nothing is given up without a dead-letter topic"
        return name

    def _sink(self, topic: str) -> DeadLetterSink:
        name = self._dead_letter_topic_of(topic)
        if name not in self._dead_letters:
            self._dead_letters[name] = self._make_dead_letters(name)
        return self._dead_letters[name]
