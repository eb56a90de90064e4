"""Links from the processes of ids_world.py to their coordinator: a ZooKeeper over a network, or a directory.

A link has at most one outstanding request, because a claim has. Answers and events for the claim wait in `_deliveries`
until the process runs, so a process that was paused issues ids before it reads any of them.
"""

from collections import Counter, deque
from dataclasses import replace

from coordination.memory import Ensemble
from coordination.port import (
    ANY_VERSION,
    BadVersion,
    Children,
    ConnectionLost,
    CoordinationError,
    Get,
    SessionEnded,
    SessionEstablished,
    SessionLost,
    SessionSuspended,
    Set,
)

SESSION_MS, LEAD_MS = 2_000, 3_000
FAULTS = ["cut"] * 2 + ["heal"] * 4 + ["lose answer"] * 2 + ["hold answer", "give up", "expire"] + ["arrive late"] * 4
STUCK = 0.06  # share of sets that get stuck on their way; late sets are the dangerous ones
SNAPSHOTS = 20  # number of writes the slowest server of the ensemble may lag behind


class Servers:
    """A ZooKeeper ensemble.

    Writes have one order for all; reads may be stale, but never older than the session has seen.

    The session of a silent client ends, immediately or much later.
    """

    def __init__(self, ensemble, rng, versioned):
        self.ensemble, self.rng, self._versioned = ensemble, rng, versioned
        self.seen = Counter()  # events that happened, counted by name
        self.calm = False  # no further faults
        self.now_ms = 0
        self.written = 0
        self.heard_ms = {}
        self._snapshots = deque([dict(ensemble.nodes)], maxlen=SNAPSHOTS)

    def begin_session(self, true_ms):
        session = self.ensemble.begin_session()
        self.heard_ms[session] = true_ms
        return session

    def end_session(self, session):
        self.heard_ms.pop(session, None)
        self.ensemble.end_session(session)
        self._wrote()

    def pass_time(self, true_ms):
        self.now_ms = true_ms
        for session, heard_ms in list(self.heard_ms.items()):
            if true_ms - heard_ms > SESSION_MS and (self.calm or self.rng.random() < 0.2):
                self.end_session(session)

    def apply(self, session, operation, seen):
        """Return (result or error, the number of the last write the session has seen)."""
        if isinstance(operation, Get | Children) and self.rng.random() < 0.3:
            return self._read_of_the_past(session, operation, seen)
        if isinstance(operation, Set) and not self._versioned:
            operation = replace(operation, version=ANY_VERSION)
        outcome = outcome_of(self.ensemble, session, operation)
        self._wrote()
        return outcome, self.written

    def _read_of_the_past(self, session, operation, seen):
        oldest = max(seen, self.written - len(self._snapshots) + 1)
        at = self.rng.randint(oldest, self.written)
        nodes = self._snapshots[at - self.written - 1]
        return outcome_of(Ensemble(nodes, self.ensemble.sessions), session, operation), at

    def _wrote(self):
        if self.ensemble.nodes != self._snapshots[-1]:
            self._snapshots.append(dict(self.ensemble.nodes))
            self.written += 1


def outcome_of(ensemble, session, operation):
    try:
        return ensemble.apply(session, operation, lambda event: None)
    except CoordinationError as error:
        return error


def was_set(operation, outcome):
    return isinstance(operation, Set) and not isinstance(outcome, CoordinationError)


class Link:
    """The common part of links: it keeps answers and events, with their times, until the process reads them.

    `shared` is the coordinator that executes its operations.
    """

    def __init__(self, shared):
        self.shared = shared
        self._deliveries = []

    def take_deliveries(self):
        deliveries, self._deliveries = self._deliveries, []
        late = [at_ms for at_ms, answer, _ in deliveries if answer and self.shared.now_ms - at_ms > LEAD_MS]
        self.shared.seen["answer read a lead late"] += len(late)
        return [tell for _, _, tell in deliveries]

    def _tell_outcome(self, outcome):
        if isinstance(outcome, CoordinationError):
            self._tell(True, lambda claim, now_ms: claim.failed(outcome, now_ms))
        else:
            self._tell(True, lambda claim, now_ms: claim.answered(outcome, now_ms))

    def _tell_event(self, event):
        self._tell(False, lambda claim, now_ms: claim.happened(event, now_ms))

    def _tell(self, answer, tell):
        self._deliveries.append((self.shared.now_ms, answer, tell))


class ZooKeeperLink(Link):
    """The session of one client. Its connection can be cut silently; requests take time, and may get stuck."""

    def __init__(self, servers, true_ms):
        super().__init__(servers)
        self._servers = servers
        self._session = servers.begin_session(true_ms)
        self._tell_event(SessionEstablished(self._session))
        self._seen = servers.written
        self._request = None  # on its way
        self._stuck = []  # sent on closed connections: they arrive late, or never
        self._cut = False

    @property
    def idle(self):
        return self._request is None and not self._deliveries

    @property
    def waits(self):
        """Return True if only time, or the end of a fault, can bring progress."""
        return self.idle or (self._cut and not self._deliveries)

    def send(self, operation):
        self._request = operation
        if isinstance(operation, Set) and not self._servers.calm and self._servers.rng.random() < STUCK:
            self._give_up()

    def wake(self, true_ms):
        """Run the client's own thread: heartbeats, arrival of requests, and news of its session."""
        if self._cut:
            if true_ms - self._servers.heard_ms.get(self._session, 0) > SESSION_MS * 2 // 3:
                self._give_up()  # kazoo suspends after this time without input
            return
        if self._session in self._servers.heard_ms:
            self._servers.heard_ms[self._session] = true_ms
        else:
            self._begin_again(true_ms)
        if self._servers.rng.random() < 0.8:
            self.arrive()

    def arrive(self, answered=True):
        """Apply the request, in its session if that is alive; deliver its answer or lose it."""
        if self._request is None or self._cut:
            return
        operation, self._request = self._request, None
        outcome, seen = self._servers.apply(self._session, operation, self._seen)
        if answered:
            self._seen = max(self._seen, seen)
            self._tell_outcome(outcome)
        else:
            self._servers.seen["set applied, answer lost"] += was_set(operation, outcome)
            self._disconnected(ConnectionLost("the answer got lost"))

    def fault(self):
        """Cause one random network fault."""
        rng = self._servers.rng
        fault = rng.choice(FAULTS)
        if fault == "cut":
            self.cut()
        elif fault == "heal":
            self.heal()
        elif fault == "lose answer" and self._request is not None and not self._cut:
            self.arrive(answered=False)
        elif fault == "hold answer":
            self.hold_answer()
        elif fault == "give up":
            self._give_up()
        elif fault == "expire":
            self._servers.seen["session expired"] += self._session in self._servers.heard_ms
            self._servers.end_session(self._session)
        elif fault == "arrive late":
            self._one_arrives_late()

    def hold_answer(self):
        """Let the answer wait on its way back, or in the socket of a stopped process, until the process runs."""
        self.arrive()

    def cut(self):
        self._servers.seen["link cut"] += not self._cut
        self._cut = True

    def heal(self):
        self._cut = False

    def die(self):
        """End the process: its requests may still arrive, and its session ends now or later."""
        if self._request is not None:
            self._stuck.append((self._session, self._request))
        while self._stuck and self._servers.rng.random() < 0.8:
            self._one_arrives_late()
        if self._servers.rng.random() < 0.5:
            self._servers.end_session(self._session)

    def _give_up(self):
        """Give up the connection; the request may still arrive."""
        if self._request is not None:
            self._stuck.append((self._session, self._request))
            self._request = None
            self._disconnected(ConnectionLost("no answer in time"))

    def _disconnected(self, error):
        self._tell_outcome(error)
        self._tell_event(SessionSuspended())
        if not self._cut:
            self._tell_event(SessionEstablished(self._session))

    def _one_arrives_late(self):
        if self._stuck:
            session, operation = self._stuck.pop(self._servers.rng.randrange(len(self._stuck)))
            outcome, _ = self._servers.apply(session, operation, 0)
            self._servers.seen["set applied after it was given up"] += was_set(operation, outcome)
            self._servers.seen["set came too late"] += isinstance(outcome, BadVersion)

    def _begin_again(self, true_ms):
        if self._request is not None:
            self._request = None
            self._tell_outcome(SessionLost("the session expired"))
        self._session = self._servers.begin_session(true_ms)
        self._tell_event(SessionEnded())
        self._tell_event(SessionEstablished(self._session))


class Directory:
    """A directory on one machine, with operations one after another.

    A process that stops inside an operation keeps the lock.
    """

    def __init__(self, ensemble, rng, versioned):
        self.ensemble, self.rng, self.versioned = ensemble, rng, versioned
        self.seen = Counter()
        self.now_ms = 0
        self.holder = None

    def pass_time(self, true_ms):
        """Advance the clock; sessions end with their processes, never earlier."""
        self.now_ms = true_ms


class DirectoryLink(Link):
    """The session of one process, without a network.

    It can be stopped inside an operation; a sync can fail after the write.
    """

    def __init__(self, directory, true_ms):
        super().__init__(directory)
        self._directory = directory
        self._session = directory.ensemble.begin_session()
        self._tell_event(SessionEstablished(self._session))
        self._request = None
        self._sync_fails = False

    @property
    def idle(self):
        return self._request is None and not self._deliveries

    @property
    def waits(self):
        return self.idle

    def send(self, operation):
        """Take the lock; the operation is applied when the process runs again."""
        self._request = operation
        if self._directory.holder is None:
            self._directory.holder = self

    def wake(self, true_ms):
        self.arrive()

    def arrive(self):
        if self._request is None:
            return
        operation, self._request = self._request, None
        if self._directory.holder is not self:
            self._tell_outcome(ConnectionLost("another process has held the lock"))
            return
        self._directory.holder = None
        outcome = self._apply(operation)
        if self._sync_fails:
            self._directory.seen["set applied, answer lost"] += was_set(operation, outcome)
            outcome, self._sync_fails = ConnectionLost("fsync: input/output error"), False
        self._tell_outcome(outcome)

    def fault(self):
        self._sync_fails = True

    def hold_answer(self):
        """Do nothing: a stopped process has not applied its operation yet."""

    def cut(self):
        """Do nothing: there is no connection to cut."""

    def heal(self):
        self._sync_fails = False

    def die(self):
        """Kill the process (kill -9): the kernel releases its locks, and its current write may or may not be done."""
        if self._directory.holder is self:
            self._directory.holder = None
            if self._directory.rng.random() < 0.5:
                self._apply(self._request)
        self._directory.ensemble.end_session(self._session)

    def _apply(self, operation):
        if isinstance(operation, Set) and not self._directory.versioned:
            operation = replace(operation, version=ANY_VERSION)
        return outcome_of(self._directory.ensemble, self._session, operation)


class Forked(Link):
    """The link of a forked child: it belongs to the parent's session, and every operation fails with SessionLost."""

    def __init__(self, shared):
        super().__init__(shared)
        self.idle = self.waits = True

    def send(self, operation):
        self._tell_outcome(SessionLost("this session was made by the parent process"))

    def wake(self, true_ms):
        """Do nothing: the child has no running thread."""

    arrive = fault = hold_answer = cut = heal = die = lambda self: None
