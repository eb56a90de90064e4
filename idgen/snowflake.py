"""SHELL (a thread, clocks): ids made in this process, with a separate worker number."""

import os
import random
import socket
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from coordination.port import CoordinationError, Coordinator, CoordinatorUnavailable
from coordination.sessions import open_session
from idgen import fork
from idgen.claim import worker_claim
from idgen.claim_state import ClaimState
from idgen.clock import IdClock
from idgen.config import IdgenConfig
from idgen.errors import NoWorkerNumber, SequenceExhausted
from idgen.layout import IdParts
from idgen.registry import IN_PROCESS
from idgen.service import flat
from idgen.worker import IdRun

IDS_DIRECTORY = "ids"  # inside a server's data directory
CLAIM_TIMEOUT_MS = 60_000  # a configured number rests for 30 s after a crash
WAKE_MS_MAX = 1_000  # the longest time between two checks of the session's events and of a stepped clock
RUN_IDS = 256  # taken with one lock; a larger run gains little, and giving it back takes longer
_STEPS_ARE_ATOMIC = getattr(sys, "_is_gil_enabled", lambda: True)()


class Snowflake:
    """A maker of ids in this process, with a worker number claimed in a directory or in ZooKeeper. Thread-safe.

        with Snowflake(directory="/var/lib/myapp/ids") as snowflake:
            id = snowflake.next_id()

    Ids are unique among all users of the same directory (one machine) or of the same ZooKeeper. A forked child's calls
    raise Fenced: make a Snowflake in each process. The constructor raises CoordinatorUnavailable, LayoutMismatch or,
    after `timeout_ms`, NoWorkerNumber.
    """

    def __init__(
        self,
        *,
        directory: str | os.PathLike[str] | None = None,
        zookeeper: str | None = None,
        worker: int | None = None,
        config: IdgenConfig | None = None,
        timeout_ms: int = CLAIM_TIMEOUT_MS,
    ) -> None:
        self.config = config or IdgenConfig(ids_worker=worker)
        if worker is not None and self.config.ids_worker != worker:
            raise ValueError(f"worker={worker} beside a config with flakelog.ids.worker={self.config.ids_worker}")
        if timeout_ms < 0:
            raise ValueError(f"timeout_ms={timeout_ms}: give a number of at least 0")
        deadline_s = time.monotonic() + timeout_ms / 1000
        self._coordinator = connect(directory, zookeeper, self.config, connect_timeout_ms=timeout_ms)
        self._clock = IdClock()
        self._lock = threading.Lock()
        self._run: Iterator[int] = iter(())
        """Ids taken from the worker, all of one millisecond. Threads share it: each id is one step of the iterator."""
        self._run_until_ns = 0
        """End of the clock's millisecond in which the run was taken, on the clock's steady source."""
        self._steady_ns = self._clock.steady_ns
        self._is_holder = fork.mark
        self._wake = threading.Event()
        self._abandoned = False
        address = f"{socket.gethostname()}:{os.getpid()}"
        token = uuid.uuid4().hex
        self._claim = worker_claim(
            self.config,
            address=address,
            token=token,
            number=self.config.ids_worker,
            role=IN_PROCESS,
            chance=random.random,
        )
        fork.guard(self)
        self._keeper = threading.Thread(target=self._keep, name="snowflake-keeper", daemon=True)
        try:
            self._keep_until_held(deadline_s, timeout_ms)
        except BaseException:
            self._claim.abandon("its Snowflake could not be made")
            self._coordinator.close()
            raise
        self._keeper.start()

    @property
    def worker_number(self) -> int | None:
        """The worker number held now, or None."""
        return None if self._claim.state is ClaimState.CLOSED else self._claim.number

    @property
    def scope(self) -> str:
        """The scope in which these ids are unique: 'directory ...' or 'zookeeper ...'."""
        return self._coordinator.scope

    def next_id(self) -> int:
        """Return one id, larger than any returned before the call. Wait while ids run 500 ms ahead of the clock.

        The id's millisecond is the clock's at some moment of the call, or up to 500 ms ahead. Raise IdError.
        """
        if self._steady_ns() < self._run_until_ns and self._is_holder[0]:
            for id in self._run:  # only its first step
                return id
        return self._next_of_new_run()

    def _next_of_new_run(self) -> int:
        """Take ids of the current millisecond from the worker as a run for all threads, and return the first."""
        while True:
            fork.check()
            try:
                with self._lock:
                    if self._steady_ns() < self._run_until_ns:
                        for id in self._run:  # another thread has just taken a run
                            return id
                    self._give_back()
                    first, count = self._claim.usable_worker().take_run(RUN_IDS, self._clock.now_ms())
                    if count > 1 and not _STEPS_ARE_ATOMIC:
                        self._claim.usable_worker().give_back(first + 1)
                    elif count > 1:
                        self._run = iter(range(first + 1, first + count))
                        self._run_until_ns = self._clock.next_ms_ns
                    return first
            except SequenceExhausted as error:
                self._wait_until(error.retry_at_ms)

    def _give_back(self) -> None:
        """Give the rest of the run back to the worker. Call it with the lock, before any other use of the claim.

        A thread that holds the iterator still finds it empty, because the list takes all of its ids in one step.
        """
        self._run_until_ns = 0
        unissued = list(self._run)
        if unissued:
            self._claim.usable_worker().give_back(unissued[0])

    def next_runs(self, count: int) -> list[IdRun]:
        """Return `count` ascending ids as runs; wait and fail like `next_id`. ValueError past a whole run-ahead."""
        while True:
            fork.check()
            try:
                with self._lock:
                    self._give_back()
                    return self._claim.usable_worker().next_ids(count, self._clock.now_ms())
            except SequenceExhausted as error:
                self._wait_until(error.retry_at_ms)

    def next_ids(self, count: int) -> list[int]:
        """Return `count` ascending ids."""
        return flat(self.next_runs(count))

    def decode(self, id: int) -> IdParts:
        """Return the time, datacenter, worker and sequence of an id."""
        return self.config.layout.unpack(id)

    def close(self) -> None:
        """Release the worker number. Harmless if repeated, and in a forked child, which has no number."""
        fork.check()
        with self._lock:
            self._give_back()
            self._claim.close(self._clock.now_ms())
        if self._keeper.is_alive() and not self._abandoned:  # in a forked child the parent's thread may seem alive
            self._wake.set()
            self._keeper.join()
        self._coordinator.close()

    def abandon(self, reason: str) -> None:
        """Drop the parent's claim in a forked child, which lacks the parent's threads; one may hold the old lock."""
        self._abandoned = True
        self._lock = threading.Lock()
        self._run, self._run_until_ns = iter(()), 0
        self._claim.abandon(reason)
        self._coordinator.close()  # the child shares a directory's session, but ZooKeeper's is only the parent's

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __iter__(self) -> Iterator[int]:
        while True:
            yield self.next_id()

    def __reduce__(self) -> str:
        raise TypeError("a Snowflake cannot be pickled or copied: the copy would repeat its ids; make another one")

    def _wait_until(self, at_ms: int) -> None:
        with self._lock:
            wait_ms = at_ms - self._clock.now_ms()
        time.sleep(max(wait_ms, 1) / 1000)

    def _keep_until_held(self, deadline_s: float, timeout_ms: int) -> None:
        while self._claim.number is None:
            self._keep_once()
            if self._claim.failure is not None:
                raise self._claim.failure
            if self._claim.number is None and time.monotonic() > deadline_s:
                raise NoWorkerNumber(f"no worker number after {timeout_ms} ms: {self._claim.problem}")
            if self._claim.number is None:
                time.sleep(self._rest_s())

    def _keep(self) -> None:
        """Carry out the claim's operations until it is closed. Runs in the keeper's thread."""
        try:
            while self._claim.state is not ClaimState.CLOSED:
                self._wake.wait(self._rest_s())
                self._wake.clear()
                self._keep_once()
        except BaseException as error:
            with self._lock:
                self._give_back()
                self._claim.abandon(f"its keeper failed: {error!r}")
            raise

    def _keep_once(self) -> None:
        """Do the work that is due. Hold the lock to change the claim, but not while the coordinator answers."""
        with self._lock:
            self._give_back()
            now_ms = self._clock.now_ms()
            for event in self._coordinator.take_events():
                self._claim.happened(event, now_ms)
            self._claim.tick(now_ms)
            operation = self._claim.take_operation()
        while operation is not None:
            try:
                result = self._coordinator.execute(operation)
            except CoordinationError as error:
                with self._lock:
                    self._give_back()
                    self._claim.failed(error, self._clock.now_ms())
                    operation = self._claim.take_operation()
            else:
                with self._lock:
                    self._give_back()
                    self._claim.answered(result, self._clock.now_ms())
                    operation = self._claim.take_operation()

    def _rest_s(self) -> float:
        with self._lock:
            deadline_ms = self._claim.next_deadline_ms
            wait_ms = WAKE_MS_MAX if deadline_ms is None else deadline_ms - self._clock.now_ms()
        return min(max(wait_ms, 0), WAKE_MS_MAX) / 1000


def connect(
    directory: str | os.PathLike[str] | None,
    zookeeper: str | None,
    config: IdgenConfig = IdgenConfig(),
    wait: bool = True,
    connect_timeout_ms: int | None = None,
) -> Coordinator:
    """Open a session in a directory or with ZooKeeper, whichever is given. ValueError, CoordinatorUnavailable.

    `wait` and `connect_timeout_ms` are as in open_session.
    """
    if (directory is None) == (zookeeper is None):
        raise ValueError('name where worker numbers are kept: directory="..." or zookeeper="host:port", one of both')
    if directory is not None:
        if not os.fspath(directory):
            raise ValueError('directory="": name a directory for worker numbers')
        from coordination.directory import has_nodes

        inside = Path(directory) / IDS_DIRECTORY
        if has_nodes(inside) and not has_nodes(directory):
            raise CoordinatorUnavailable(
                f"{directory} is a server's data directory; its worker numbers are in {inside}, and ids made with any "
                f"others could be the same as its own"
            )
    return open_session(
        directory=directory,
        zookeeper=zookeeper,
        access=config.ids_zookeeper_access,
        allow_network=config.ids_directory_network_allow,
        wait=wait,
        connect_timeout_ms=connect_timeout_ms,
    )
