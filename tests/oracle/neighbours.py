"""The rules for two reports of a script with many connections in a turn (interleaved.py).

    of two trees     each connection gets the same answers in the same order, but for ids, and for offsets in topics
                     that others write to; it is closed at the same request
                     each connection's batches lie in each partition in the same order
                     where timing is free, the answers of the whole script are compared, else those of each step
    of each tree     an answered offset is where the batch lies, and the ids in the answer are those of that place
                     a Fetch gets what lies in the log
                     offsets follow each other without a gap; ids are unique and rise with the offsets
                     after a kill the logs are as before; after a power cut they end earlier, but not before the end of
                     what was answered in topics that wait for the disk
"""

import struct
from itertools import chain

from tests.oracle import logs
from tests.oracle.answers import NoAnswer, results_of, split
from tests.oracle.batches import field_of
from tests.oracle.compare import joined
from tests.oracle.interleaved import FETCH_VERSION, ID_HEADER, WAITS_FOR_DISK
from tests.oracle.requests import FETCH, PRODUCE

END, KILLED, CUT = "at the end", "after a kill", "after a power cut"
FREE = -2  # in place of an offset
OUT_OF_RANGE = 1
SHOWN = 400


class Unlike(AssertionError):
    """A rule is broken; the message says where."""


def hold(script, before, now):
    """Hold the report of the tree now to the report of the tree before. Unlike: a rule is broken."""
    for name, report in (("before", before), ("now", now)):
        if report["error"]:
            raise Unlike(f"the driver failed on the tree {name}:\n{report['error']}")
    steps = [(report["steps"].get(number, ()) for report in (before, now)) for number in range(len(script["steps"]))]
    if script["is_timing_free"]:
        steps = [(chain.from_iterable(report["steps"].values()) for report in (before, now))]
    for number, (was, seen) in enumerate(steps):
        _hold_answers(script, number, joined(was), joined(seen))
    _hold_order(script, _partitions(before), _partitions(now))
    for report in (before, now):
        hold_alone(script, report)
    if len(now["faults"]) > len(before["faults"]):
        raise Unlike(f"a fault that was not met before:\n{now['faults'][-1]}")


def hold_alone(script, report):
    """Hold one report to the rules for each tree. Unlike: a rule is broken."""
    partitions = _partitions(report)
    _check_ids(partitions)
    _hold_places(script, report, partitions)
    _hold_recovery(script, report, partitions)


def _partitions(report):
    return logs.partitions(report["files"][END])


# --- two trees ---------------------------------------------------------------------------------------------------


def _hold_answers(script, number, was, seen):
    for key in {*was, *seen}:
        kind, conn = key
        first, second = was.get(key), seen.get(key)
        if kind == "answer":
            first, second = (_answers_of(script, conn, answer or b"") for answer in (first, second))
        elif first and second:
            continue  # closed both times, if perhaps for another reason
        if first != second:
            at = next((at for at, (a, b) in enumerate(zip(first or (), second or (), strict=False)) if a != b), -1)
            shown = [repr(side if at < 0 else side[at])[:SHOWN] for side in (first, second)]
            raise Unlike(f"step {number}, {kind} {at} on connection {conn}:\n  before {shown[0]}\n  now    {shown[1]}")


def _answers_of(script, conn, data):
    return [_without_places(script, conn, answer) for answer in split(data)]


def _without_places(script, conn, answer):
    """An answer without what depends on the order of connections."""
    key, version = asked_for(script, conn, answer)
    if key == PRODUCE:
        try:
            results, around = results_of(version, answer)
        except NoAnswer:
            return answer
        batches = script["sent"].get((conn, answer[:4]), ())
        shared = [topic.startswith("shared") for topic, _, _ in batches] or [True] * len(results)
        return around, [_without_place(*pair) for pair in zip(results, shared, strict=True)]
    if key == FETCH and version == FETCH_VERSION:
        topic, error_code, _ = fetched(answer)
        if topic.startswith(b"shared"):
            # An offset that another connection's batch takes in this turn may be there already.
            return answer[:4], topic, 0 if error_code == OUT_OF_RANGE else error_code
    return answer


def _without_place(result, shared):
    number = sum(number for _, number in result.runs)
    base_offset = FREE if shared and result.base_offset >= 0 else result.base_offset
    message = None if result.message is None else FREE  # messages begin with Kafka's texts now
    return result._replace(base_offset=base_offset, runs=number, message=message)


def asked_for(script, conn, answer):
    """(API key, version) of the request that is answered."""
    if "asked" not in script:
        script["asked"] = {
            (conn, data[8:12]): (int.from_bytes(data[4:6], "big"), int.from_bytes(data[6:8], "big"))
            for step in script["steps"] if step[0] == "turn"
            for conn, frames, _, _ in step[1:]
            for data, *_ in frames
        }  # fmt: skip
    return script["asked"].get((conn, answer[:4]), (None, None))


def fetched(answer):
    """(topic, error code, records) of a Fetch answer of FETCH_VERSION about one partition; no topic in an answer about
    none."""
    try:
        return _fetched(answer)
    except struct.error:
        return b"", 0, b""


def _fetched(answer):
    at = 4 + 4 + 2 + 4 + 4
    (size,) = struct.unpack_from(">h", answer, at)
    topic = answer[at + 2 : at + 2 + size]
    at += 2 + size + 4
    _, error_code, _, _, _, aborted = struct.unpack_from(">ihqqqi", answer, at)
    at += struct.calcsize(">ihqqqi") + 16 * max(aborted, 0) + 4
    (size,) = struct.unpack_from(">i", answer, at)
    return topic, error_code, answer[at + 4 : at + 4 + max(size, 0)]


def _hold_order(script, before, now):
    stamped = {name for name, _, properties in script["topics"] if properties == ID_HEADER}
    for name in {*before, *now}:
        is_stamped = _topic_of(name) in stamped
        was, seen = (_by_sender(partitions.get(name), script["senders"], is_stamped) for partitions in (before, now))
        for conn in {*was, *seen}:
            first, second = was.get(conn, []), seen.get(conn, [])
            if first != second:
                pairs = enumerate(zip(first, second, strict=False))
                at = next((n for n, (a, b) in pairs if a != b), min(len(first), len(second)))
                difference = f"{len(first)} batches before, {len(second)} now, unlike from number {at} on"
                raise Unlike(f"{name}: of connection {conn} there are {difference}")


def _by_sender(partition, senders, stamped):
    """{connection: what its batches have, in the order of the log}. In batches with ids as headers the bytes differ."""
    by_sender = {}
    for batch in partition.batches if partition else ():
        mark = field_of(batch.data, "base_timestamp")
        names = "base_timestamp", "record_count", "producer_id", "producer_epoch", "base_sequence", "attributes"
        content = tuple(field_of(batch.data, name) for name in names) if stamped else batch.content
        by_sender.setdefault(senders.get(mark), []).append(content)
    return by_sender


def _topic_of(name):
    return name.rpartition("-")[0]


# --- one tree ----------------------------------------------------------------------------------------------------


def _check_ids(partitions):
    try:
        logs.check(partitions)
    except AssertionError as error:
        raise Unlike(str(error)) from None
    for name, partition in partitions.items():
        end_offset = 0
        for batch in partition.batches:
            if batch.base_offset != end_offset:
                raise Unlike(f"{name}: offset {end_offset} is followed by {batch.base_offset}")
            end_offset = batch.end_offset
        if len(partition.ids()) != end_offset:
            raise Unlike(f"{name}: {end_offset} offsets have {len(partition.ids())} ids")


def answered(script, report):
    """(topic, partition, base timestamp, result) of each batch that was answered without an error."""
    for number in sorted(report["steps"]):
        for kind, conn, data in report["steps"][number]:
            for answer in split(data) if kind == "answer" else ():
                key, version = asked_for(script, conn, answer)
                batches = script["sent"].get((conn, answer[:4]), ())
                if key == PRODUCE and batches:
                    results, _ = results_of(version, answer)
                    for (topic, partition, mark), result in zip(batches, results, strict=True):
                        if not result.error_code:
                            yield topic, partition, mark, result


def _hold_places(script, report, partitions):
    at = {
        (name, batch.base_offset): batch for name, partition in partitions.items() for batch in partition.batches
    }
    ids = {name: partition.ids() for name, partition in partitions.items()}
    for topic, partition, mark, result in answered(script, report):
        name = f"{topic}-{partition}"
        batch = at.get((name, result.base_offset))
        if batch is None or field_of(batch.data, "base_timestamp") != mark:
            raise Unlike(f"{name}: the batch of {mark} was answered with offset {result.base_offset}, and is not there")
        told_ids = [first_id + n for first_id, count in result.runs for n in range(count)]
        true_ids = [ids[name][offset] for offset in range(batch.base_offset, batch.end_offset)]
        if told_ids and told_ids != true_ids:
            raise Unlike(f"{name}: offsets from {result.base_offset} on have ids {true_ids}, answered were {told_ids}")
    _hold_fetches(script, report, at)


def _hold_fetches(script, report, at):
    batches = {}
    for (name, offset), batch in at.items():
        batches.setdefault(_topic_of(name).encode(), {}).setdefault(offset, []).append(batch.data)
    for number, seen in report["steps"].items():
        for kind, conn, data in seen:
            for answer in split(data) if kind == "answer" else ():
                if asked_for(script, conn, answer) == (FETCH, FETCH_VERSION):
                    topic, error_code, records = fetched(answer)
                    _hold_fetch(f"step {number}: Fetch of {topic}", records, batches.get(topic, {}))


def _hold_fetch(request, records, batches):
    position, end_offset = 0, None
    while position + 12 <= len(records):
        offset = int.from_bytes(records[position : position + 8], "big")
        size = 12 + int.from_bytes(records[position + 8 : position + 12], "big")
        part = records[position : position + size]
        batch = next((data for data in batches.get(offset, ()) if data[: len(part)] == part), None)
        if batch is None or end_offset not in (None, offset):
            raise Unlike(f"{request} gave a batch at {offset} that is not what lies there")
        position, end_offset = position + size, offset + field_of(batch, "last_offset_delta") + 1


def _hold_recovery(script, report, partitions):
    killed, cut = (logs.partitions(report["files"][moment]) for moment in (KILLED, CUT))
    topics = script["topics"]
    waits = {name for name, _, properties in topics if any(setting in properties for setting in WAITS_FOR_DISK)}
    marks = {
        name: {field_of(batch.data, "base_timestamp") for batch in partition.batches}
        for name, partition in cut.items()
    }
    for name, partition in partitions.items():
        ids = partition.ids()
        if killed[name].batches != partition.batches or killed[name].ids() != ids:
            raise Unlike(f"{name}: after a kill the log is another one")
        batches = cut[name].batches
        if batches != partition.batches[: len(batches)] or not cut[name].ids().items() <= ids.items():
            raise Unlike(f"{name}: after a power cut the log is not the beginning of what it was")
    for topic, partition, mark, result in answered(script, report):
        name = f"{topic}-{partition}"
        if topic in waits and mark not in marks[name]:
            raise Unlike(f"{name}: offset {result.base_offset} was answered, and is gone after a power cut")
