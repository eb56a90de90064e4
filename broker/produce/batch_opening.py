"""Produce requests whose records take longer to check than the reactor thread may spend: a worker thread does it.

    a handler says MUST_OPEN       the request is held, and its records become a job (`take`)
    a thread runs the job          the connection executes nothing meanwhile; other connections go on
    `done`                         the request is executed again, and finds what the thread has made of its records

A request has no effect before it is executed again. So whatever happens meanwhile (a deleted topic, another sequence, a
closed connection) is met as by a request that comes later, and the order of a connection's requests is kept.

Records that get their ids as headers need the ids before they are compressed. The job takes them at its start, and
reserves the log until the request is staged: ids rise with the offsets, so no other batch may come between. Requests
for a reserved log are held too. A marker of a transaction is not held, nor is a batch that was staged before and waits
for ids. If one comes between, the ids are stale, and the job is made again with other ids.

A request whose transaction another broker coordinates is held in the same way until that broker has answered. The
requests behind it on the connection are asked about together with it.
"""

from collections.abc import Callable, Hashable, Sequence

from broker.channel.connection import Connection
from broker.channel.request_channel import RequestChannel
from broker.log.partition_log import PartitionLog
from broker.log.validation.open_job import OpenJob, OpenTask
from broker.log.verification import Verification
from broker.now import Now
from broker.produce.ports import ProduceServices
from broker.produce.produce_commit import ProduceCommit
from broker.produce.validate import PARTITIONS_AT_ONCE, questions_of, to_open
from broker.steps import Steps, at_once
from broker.waiting.pending import Pending
from broker.waiting.purgatory import Delayed
from broker.wire.errors import ApiError, ErrorCode, WireError
from broker.wire.frame import read_request_header
from broker.wire.primitives import skip_tags
from broker.wire.produce import FLEXIBLE, ProduceRequest, decode_request
from broker.wire.request_limits import DEFAULT_LIMITS, RequestLimits
from idgen.errors import IdError, SequenceExhausted

KEY_VERSION_BYTES = 4
REQUESTS_AT_ONCE = 5
"""The requests behind a held one whose questions are asked with its own. Java's producer has as many under way."""
BYTES_BEHIND_MAX = 1 << 16
"""A longer request asks when it is executed, because its checksums would be computed twice."""

_LIMITS_BEHIND = RequestLimits(partitions=PARTITIONS_AT_ONCE // REQUESTS_AT_ONCE)


class BatchOpening:
    """The jobs of one engine's connections; a connection has at most one."""

    def __init__(
        self, services: ProduceServices, channel: RequestChannel, commit: ProduceCommit, pending: Pending
    ) -> None:
        self._services = services
        self._turn = services.turn
        self._channel = channel
        self._commit = commit
        self._pending = pending
        self.jobs: list[OpenJob] = []
        """The jobs that no thread has yet."""

    def take(self) -> list[OpenJob]:
        """Return the jobs for threads."""
        jobs, self.jobs = self.jobs, []
        return jobs

    def open(self, conn: Connection, frame: memoryview) -> None:
        """Hold a Produce, and have a thread open its records."""
        at_once(self.open_in_steps(conn, frame), self._channel.clock.now)

    def open_in_steps(self, conn: Connection, frame: memoryview) -> Steps[None]:
        """Do as `open` does, in slices."""
        self.finish(conn)
        conn.hold(frame)
        held = conn.held
        assert held is not None
        version, request = _decode(held)
        tasks = yield from to_open(self._services, version, request, self._channel.clock.now)
        # A job reserves all its logs at once or none. If it kept some while it waited for another, two jobs that name
        # the same logs in another order would wait for each other for ever.
        stamped = {task.log for task in tasks if task.topic.id_header}
        for log in stamped:
            if log in self._turn.reserved:
                self._wait(conn, log)
                return
        job = conn.opened = OpenJob(conn, tasks)
        if stamped:
            self._reserve(job, stamped)
        self.jobs.append(job)
        self._pending.jobs = True

    def wait(self, conn: Connection, frame: memoryview, log: PartitionLog) -> None:
        """Hold a Produce while its log is reserved, then execute it."""
        self.finish(conn)  # a connection that waits has no logs reserved, so that two never wait for each other
        conn.hold(frame)
        self._wait(conn, log)

    def verify(self, conn: Connection, frame: memoryview, verifications: Sequence[Verification]) -> None:
        """Hold a Produce until other brokers have answered whether transactions have its partitions."""
        self.finish(conn)
        conn.hold(frame)
        now = self._channel.clock.now
        self._services.coordinators.transactions.ask((*verifications, *self._questions_behind(conn, frame)), now)
        self._wait_until(conn, verifications, lambda: not any(question.is_pending for question in verifications))

    def _questions_behind(self, conn: Connection, frame: memoryview) -> list[Verification]:
        """Return the questions of the Produce requests that follow a held one, for one wait instead of many.

        Nothing else is done with those requests: each is executed in its turn, and finds the answers.
        """
        questions: list[Verification] = []
        for following in conn.decoder.following(REQUESTS_AT_ONCE):
            if following[:KEY_VERSION_BYTES] != frame[:KEY_VERSION_BYTES] or len(following) > BYTES_BEHIND_MAX:
                break
            try:
                version, request = _decode(following, _LIMITS_BEHIND)
            except (WireError, IndexError):
                break  # its execution raises the error again
            questions += questions_of(self._services, version, request)
        return questions

    def finish(self, conn: Connection) -> None:
        """Forget the connection's job, because its request is executed or the connection is closed."""
        job, conn.opened = conn.opened, None
        if job is None:
            return
        job.cancelled = True
        reserved = self._turn.reserved
        for log in [log for log, owner in reserved.items() if owner is job]:
            del reserved[log]
            self._services.purgatory.touch(_key_of(log), self._channel.clock.now)

    def done(self, job: OpenJob, now: Now) -> None:
        """Have the request of a job executed again."""
        self._channel.clock.now = now
        if job.conn.opened is job:
            self._again(job.conn)

    def failed(self, job: OpenJob, error: Exception, now: Now) -> None:
        """Close the connection of a job that ended with an unexpected exception."""
        self._channel.clock.now = now
        conn = job.conn
        if conn.opened is job:
            self.finish(conn)
            conn.release()
            self._channel.failed([conn], error)

    def _again(self, conn: Connection) -> None:
        """Execute the held request in the next turn."""
        frame = conn.release()
        if frame is None or conn.close_reason is not None:
            self.finish(conn)
            return
        conn.take_back(frame)
        self._channel.queue.resume(conn)

    def _wait(self, conn: Connection, log: PartitionLog) -> None:
        self._wait_until(conn, (_key_of(log),), lambda: log not in self._turn.reserved)

    def _wait_until(self, conn: Connection, keys: Sequence[Hashable], is_over: Callable[[], bool]) -> None:
        waiting: Delayed[bool] = Delayed(keys, None, lambda now: True if is_over() else None, lambda now: True)
        # Not limited: if the purgatory answered it early, it would be executed at once, for ever.
        self._services.purgatory.watch(waiting, lambda _: self._again(conn), self._channel.clock.now, limited=False)

    def _reserve(self, job: OpenJob, logs: set[PartitionLog]) -> None:
        """Take the ids for records that get them as headers, and reserve their logs."""
        if any(self._turn.by_log.get(log) for log in logs):
            self._commit.commit()  # their ids must be below those of the job
        # A request may name a log twice. Its second batch then gets ids above those of the first, which `last_id` does
        # not show yet, because nothing is appended before the thread is done.
        floors = {log: log.last_id for log in logs}
        for task in job.tasks:
            if task.log in logs:
                self._take_ids(task, floors)
        for log in logs:
            self._turn.reserved[log] = job

    def _take_ids(self, task: OpenTask, floors: dict[PartitionLog, int]) -> None:
        now, log = self._channel.clock.now, task.log
        try:
            runs = self._services.id_stamper.next_ids(task.header.record_count, now.wall_ms, floors[log])
        except IdError as error:
            if isinstance(error, SequenceExhausted):
                self._services.clock_waits.refused(log, now)
            # Not held until there are ids, because that would hold up all requests for the log.
            task.error = ApiError(ErrorCode.REQUEST_TIMED_OUT, f"{log.name}: {error}")
        else:
            task.runs = runs
            floors[log] = runs[-1].first + runs[-1].count - 1


def _key_of(log: PartitionLog) -> tuple[str, PartitionLog]:
    """Return the key of requests that wait until a log is not reserved."""
    return "reserved", log


def _decode(frame: memoryview, limits: RequestLimits = DEFAULT_LIMITS) -> tuple[int, ProduceRequest]:
    """Return the version of a Produce and the request. Raise WireError, or IndexError if the header's tags are cut."""
    header = read_request_header(frame)
    position = header.body if header.version < FLEXIBLE else skip_tags(frame, header.body)
    return header.version, decode_request(header.version, frame, position, limits)
