"""Compaction in any order of writes, passes and restarts leaves the records that a model expects."""

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.record.compression import Codec
from tests.broker.log.compaction.cleaner_world import DAY_MS, CleanerWorld

KEYS = st.sampled_from(["a", "b", "c", "d", "e" * 40])
BATCH = st.lists(st.tuples(KEYS, st.one_of(st.none(), st.text("xyz", max_size=3))), min_size=1, max_size=5)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), BATCH, st.sampled_from(list(Codec))),
        st.tuples(st.sampled_from(["roll", "clean", "later", "reopen"])),
    ),
    max_size=40,
)


@settings(max_examples=60)
@given(STEPS, st.sampled_from([1 << 10, 1 << 20]), st.sampled_from([0, 100, 4096]))
def test_a_reader_of_all_is_left_with_what_was_written_last(steps, segment_bytes, interval_bytes):
    world = CleanerWorld(segment_bytes=segment_bytes, index_interval_bytes=interval_bytes)
    written, model, ids = {}, {}, {}
    for step, *arguments in steps:
        if step == "put":
            batch, codec = arguments
            done = world.put(*batch, codec=codec)
            pairs = [(key.encode(), None if value is None else value.encode()) for key, value in batch]
            written |= {done.base_offset + n: pair for n, pair in enumerate(pairs)}
            model |= dict(pairs)
            ids |= {done.base_offset + n: id for n, id in enumerate(_each_id(done.runs))}
        elif step == "reopen":
            world.round()
            later = world.ms
            world = world.reopened(segment_bytes=segment_bytes, index_interval_bytes=interval_bytes)
            world.ms = later
        elif step == "later":
            world.ms += 2 * DAY_MS
        else:
            {"roll": world.roll, "clean": world.clean}[step]()
    records = world.records()
    assert world.latest() == {key: value for key, value in model.items() if value is not None}
    assert all(written[offset] == pair for offset, pair in records.items())
    assert world.log.log_end_offset == len(written) and not world.lines
    remaining_ids = world.ids()
    assert remaining_ids.items() <= ids.items() and records.keys() <= remaining_ids.keys()
    if world.log.cleaned_offset == len(written):
        assert len({key for key, _ in records.values()}) == len(records)


def _each_id(runs):
    return [first + n for first, count in runs for n in range(count)]
