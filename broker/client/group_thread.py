"""SHELL (thread, sockets, clock): a group member that works in a thread of its own.

The thread has its own connections. So heartbeats go on while the program's thread is busy, for example in a function
that blocks. The program has to call `poll` every now and then. If it does not for `max.poll.interval.ms`, the member
leaves the group, and others get its partitions.
"""

import time
from collections.abc import Callable, Iterable
from threading import Condition, Thread

from broker.client.blocking import Client
from broker.client.core import Address
from broker.client.errors import ClientError
from broker.client.group import Event, GroupMember
from broker.client.group_config import GroupMemberConfig
from broker.client.group_protocol import Partition
from broker.client.group_requests import GroupIdentity
from broker.client.security.client_security import ClientSecurity

CLOSE_SECONDS = 5.0  # longest wait for the answer to LeaveGroup; then the session expires instead


class GroupThread:
    """A member of `group_id`, subscribed to `topics`. Thread-safe.

    `notify` is called in the member's thread when there may be events. It must only wake the program. The program then
    calls `poll`.
    """

    def __init__(
        self,
        servers: str,
        group_id: str,
        topics: Iterable[str],
        config: GroupMemberConfig,
        notify: Callable[[], None],
        security: ClientSecurity | None = None,
    ) -> None:
        self._client = Client(servers, timeout_ms=config.request_timeout_ms, security=security)
        self._member = GroupMember(self._client.core, group_id, topics, config, _now_ms())
        self._notify = notify
        self._changed = Condition()
        self._thread = Thread(target=self._run, name=f"group {group_id}", daemon=True)

    def start(self) -> None:
        """Begin to join the group."""
        self._thread.start()

    def poll(self) -> list[Event]:
        """Return the events since the last call, and show that the program works on."""
        with self._changed:
            now_ms = _now_ms()
            self._member.tick(now_ms)  # the session ends in time, even if the thread waits for an answer
            self._member.polled(now_ms)
            self._changed.notify()
            return self._member.take_events()

    @property
    def identity(self) -> GroupIdentity:
        """Return the member as its commits name it now."""
        with self._changed:
            return self._member.committing

    @property
    def waits_since_ms(self) -> int | None:
        """Return since when the member waits for its group, in ms of the monotonic clock; None if it does not."""
        with self._changed:
            return self._member.waits_since_ms

    @property
    def coordinator(self) -> Address | None:
        """Return the group's coordinator, or None while it is not known."""
        with self._changed:
            return self._member.coordinator

    def owns(self, partition: Partition) -> bool:
        """Return True while the program may commit the partition: it belongs to the member, and did all the time."""
        with self._changed:
            self._member.tick(_now_ms())
            return self._member.may_commit(partition)

    def released(self, partitions: Iterable[Partition]) -> None:
        """Give up revoked partitions whose progress is committed."""
        with self._changed:
            self._member.released(partitions)
            self._changed.notify()

    def subscribe(self, topics: Iterable[str]) -> None:
        """Change the topics."""
        with self._changed:
            self._member.subscribe(topics)
            self._changed.notify()

    @property
    def is_alive(self) -> bool:
        """True until the member has left the group."""
        return self._thread.is_alive()

    def leave(self) -> None:
        """Begin to leave the group, so that others get the partitions at once."""
        with self._changed:
            self._member.leave(_now_ms())
            self._client.interrupt()
            self._changed.notify()

    def close(self) -> None:
        """Leave the group. Waits for the answer up to CLOSE_SECONDS."""
        self.leave()
        if self._thread.is_alive():
            self._thread.join(CLOSE_SECONDS)

    # --- the thread

    def _run(self) -> None:
        try:
            while self._work():
                pass
        finally:
            self._client.close()

    def _work(self) -> bool:
        """Carry out the next operation, or wait until one is due. Return False at the end."""
        member = self._member
        with self._changed:
            steps = member.take(_now_ms())
            while steps is None:
                if member.has_events:
                    self._notify()
                if member.is_over:
                    return False
                due_ms = member.next_deadline_ms()
                self._changed.wait(None if due_ms is None else max(0, due_ms - _now_ms()) / 1000)
                steps = member.take(_now_ms())
        answer: object
        try:
            answer = self._client.run(steps)
        except ClientError as error:
            answer = error
        except Exception as error:  # the program has to learn of it, because nothing works without this thread
            answer = ClientError(f"the member's thread failed: {error!r}")
        with self._changed:
            member.answered(answer, _now_ms())
        return True


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
