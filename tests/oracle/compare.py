"""Where two reports of one script differ, in words that name the request."""

from tests.oracle import logs
from tests.oracle.answers import NoAnswer, results_of, split
from tests.oracle.requests import LENGTH_BYTES, PRODUCE

SHOWN_BYTES = 160
DESCRIBE_LOG_DIRS = 35
TIMED_OUT = 7


def difference(script, before, now):
    """The first difference between the report of the tree before and that of the tree now; None where they are
    equal."""
    return (
        _errors(before, now)
        or _difference_of_steps(script, before["steps"], now["steps"], Answers())
        or _difference_of_files(before["files"], now["files"])
        or _difference_of_faults(before["faults"], now["faults"])
    )


def difference_but_for_ids(script, before, now):
    """Compare two runs in which several requests of a connection may share a turn.

    Ids are free, but unique and rising. One write of several batches has one entry in the journal and in the indexes,
    and begins no segment in its middle. Therefore only the batches of each partition are compared. A closed connection
    may have been closed for another reason.
    """
    return (
        _errors(before, now)
        or _difference_of_steps(script, before["steps"], now["steps"], Answers(ids_are_free=True))
        or _difference_of_files(_logs_of(before["files"]), _logs_of(now["files"]))
        or _difference_of_faults(before["faults"], now["faults"])
        or _wrong_logs(now["files"])
    )


def _errors(before, now):
    for name, report in (("before", before), ("now", now)):
        if report["error"]:
            return f"the driver failed on the tree {name}:\n{report['error']}"
    return None


def _logs_of(files):
    """{moment: {partition: the bytes of its batches}}."""
    return {
        moment: {
            name: b"".join([batch.data for batch in partition.batches])
            for name, partition in logs.partitions(contents).items()
        }
        for moment, contents in files.items()
    }  # fmt: skip


def _wrong_logs(files):
    for moment, contents in files.items():
        try:
            logs.check(logs.partitions(contents))
        except AssertionError as error:
            return f"{moment}: {error}"
    return None


def _difference_of_steps(script, before, now, answers):
    for number, step in enumerate(script["steps"]):
        answers.note(step)
        was, seen = joined(before.get(number, ())), joined(now.get(number, ()))
        if was != seen and not answers.all_match(was, seen):
            return f"step {number}: {describe(step)}\n{_first_unlike(was, seen)}"
    return None


class Answers:
    """Compares the answers of both trees, and passes over the differences that are allowed."""

    def __init__(self, ids_are_free=False):
        self._ids_are_free = ids_are_free
        self._requests = {}
        """{(connection, correlation id as bytes): (API key, version)} of the requests up to this step."""

    def note(self, step):
        """Note what a step asks: two clients on one connection may use one correlation id."""
        for conn, frames, _, _ in step[1:] if step[0] == "turn" else ():
            for data, *_ in frames:
                api_and_version = int.from_bytes(data[4:6], "big"), int.from_bytes(data[6:8], "big")
                self._requests[conn, data[8:12]] = api_and_version

    def all_match(self, was, seen):
        """Whether all that was done in a step is as it was, apart from what may differ."""
        conns = {conn for _, conn in (*was, *seen)}
        return all(self._match(conn, was, seen) for conn in conns)

    def _match(self, conn, was, seen):
        """The same for one connection."""
        closed, is_closed = was.get(("close", conn)), seen.get(("close", conn))
        if closed != is_closed and not (self._ids_are_free and closed and is_closed):
            return False
        first, second = (list(split(events.get(("answer", conn), b""))) for events in (was, seen))
        if closed and self._ids_are_free:
            self._drop_late(conn, first, second)
        return len(first) == len(second) and all(
            answer == other or self._answers_match(*self._asked_for(conn, answer), answer, other)
            for answer, other in zip(first, second, strict=True)
        )

    def _asked_for(self, conn, answer):
        return self._requests.get((conn, answer[:4]), (None, 0))

    def _drop_late(self, conn, *lists):
        """Shorten the longer list of answers if its next answer says that a batch was not on the disk in time. Such an
        answer may be lost if the connection is closed for a later request of the same turn."""
        shorter, longer = sorted(lists, key=len)
        if len(shorter) < len(longer) and self._is_late(conn, longer[len(shorter)]):
            del longer[len(shorter) :]

    def _is_late(self, conn, answer):
        api_key, version = self._asked_for(conn, answer)
        try:
            if api_key != PRODUCE:
                return False
            return any(result.error_code == TIMED_OUT for result in results_of(version, answer)[0])
        except NoAnswer:
            return False

    def _answers_match(self, api_key, version, was, seen):
        if api_key == DESCRIBE_LOG_DIRS:  # an answer tells how large the files are, and at its end the disk's room
            return self._ids_are_free
        if api_key != PRODUCE or not self._ids_are_free:
            return False
        try:
            (before, around), (now, around_now) = results_of(version, was), results_of(version, seen)
        except NoAnswer:
            return False
        return around == around_now and len(before) == len(now) and all(map(_same_but_for_ids, before, now))


def _same_but_for_ids(was, now):
    if number_of(was.runs) == number_of(now.runs):
        now = now._replace(runs=was.runs)
    return was == now


def number_of(runs):
    """How many ids some runs have."""
    return sum(number for _, number in runs)


def joined(seen):
    """Return the answers and closes of one step as {(what, connection): bytes or reason}, without the order of
    connections."""
    events = {}
    for kind, conn, data in seen:
        events[kind, conn] = events[kind, conn] + data if kind == "answer" and (kind, conn) in events else data
    return events


def _first_unlike(was, seen):
    for key in sorted({*was, *seen}):
        if was.get(key) != seen.get(key):
            kind, conn = key
            first, second = was.get(key), seen.get(key)
            at = _unlike_at(first, second)
            unlike = "" if at is None else f", unlike from byte {at} on"
            return f"{kind} on connection {conn}{unlike}\n  before {_shown(first, at)}\n  now    {_shown(second, at)}"
    return ""


def _unlike_at(first, second):
    if not isinstance(first, bytes) or not isinstance(second, bytes):
        return None
    unlike = (at for at, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
    return next(unlike, min(len(first), len(second)))


def _shown(data, at):
    if not isinstance(data, bytes):
        return repr(data)
    start = 0 if at is None or at < SHOWN_BYTES // 2 else at - SHOWN_BYTES // 4
    return f"{len(data)} bytes{f', from {start}' if start else ''}: {data[start : start + SHOWN_BYTES].hex()}"


def _difference_of_files(before, now):
    for moment in before:
        was, seen = before[moment], now.get(moment, {})
        for path in sorted({*was, *seen}):
            if was.get(path) != seen.get(path):
                return f"{path} {moment}: {_file(was.get(path))} before, {_file(seen.get(path))} now"
    return None


def _file(data):
    if data is None:
        return "missing"
    return f"{len(data)} bytes" if isinstance(data, bytes) else f"{data[0]} bytes (digest {data[1]})"


def _difference_of_faults(before, now):
    if len(now) > len(before):
        return f"a fault that was not met before:\n{now[-1]}"
    return None


def describe(step):
    """A step in words."""
    if step[0] != "turn":
        return repr(step)
    lines = []
    for conn, frames, pieces, held_back in step[1:]:
        extra = f", in receives of {pieces}" if pieces else ""
        extra += f", the last {held_back} bytes held back" if held_back else ""
        lines.append(f"connection {conn} sends {len(frames)} frames{extra}")
        for data, fills, _, _ in frames:
            key, version = int.from_bytes(data[4:6], "big"), int.from_bytes(data[6:8], "big")
            head = data[: LENGTH_BYTES + SHOWN_BYTES].hex()
            filled = f", filled with {fills}" if fills else ""
            lines.append(f"  API {key} v{version}, {len(data)} bytes{filled}: {head}")
    return "\n".join(lines)
