"""Loads with --max-rejected: more rejected messages than allowed withdraw the load, and the next one takes them."""

import json

import pytest

from broker.client.offset_spec import Earliest
from spark_bridge.load import load as loads
from spark_bridge.load import receipt as receipts
from spark_bridge.load.decoding import READ_COLUMNS, Decoding
from spark_bridge.load.driver import Driver
from spark_bridge.load.ledger import LoadOptions, OtherLayout, Since
from spark_bridge.load.load import Layout, LoadError
from spark_bridge.load.parquet_sink import ParquetSink
from spark_bridge.load.rejections import TooManyRejected
from spark_bridge.load.sink import LoadState
from spark_bridge.load.verify import verify
from tests.spark_bridge.load.tables import Killed
from tests.spark_bridge.load.test_decoding import DECODING, JsonLog, is_data, is_rejected, rows_of
from tests.spark_bridge.load.world import TOPIC, Attempts, MemoryStorage, Topics, Watcher, in_order, no_step

WRONG = Decoding("json", DECODING.schema.replace("long", "string"), columns=("partition", "offset"))


def driver(log, storage, max_rejected, decoding=DECODING, name="a", **options):
    """Return a driver of a log whose every third value, that of offset 2, 5, ..., does not decode."""
    layout = Layout(decode=decoding.to_dict())
    load_options = LoadOptions(TOPIC, columns=READ_COLUMNS, layout=layout, max_rejected=max_rejected, **options)
    return Driver(load_options, ParquetSink(storage, TOPIC, Attempts(name)), JsonLog(log), in_order, Watcher(), "code")


def withdraw(*arguments, **options):
    run = driver(*arguments, **options)
    with pytest.raises(TooManyRejected) as error:
        run.run()
    return run, str(error.value)


def loaded(storage):
    return sorted((row["partition"], row["offset"]) for row in rows_of(storage, is_data))


def test_a_load_with_as_many_rejected_messages_as_allowed_is_published():
    storage = MemoryStorage()
    driver(Topics(6), storage, 2).run()
    assert loaded(storage) == [(0, 0), (0, 1), (0, 3), (0, 4)]


def test_one_more_withdraws_the_load_and_nothing_of_it_is_there():
    storage = MemoryStorage()
    run, message = withdraw(Topics(9), storage, 2)
    assert run.watcher.notes[-1] == ("withdrawn", 0)
    assert message == (
        "3 messages of load 0 did not decode (t-0 offset 2: the value is no JSON object), more than --max-rejected 2 "
        "allows. The load is withdrawn and nothing of it was published; the next run takes its messages again. Give a "
        "schema that fits, or a higher --max-rejected, which keeps them apart"
    )
    assert loaded(storage) == [] and not [name for name in storage.objects if is_rejected(name) or "staging" in name]
    assert run.sink.newest().state is LoadState.WITHDRAWN
    assert verify(run.sink).problems == ()


def test_the_next_load_takes_the_messages_of_those_that_were_withdrawn():
    storage, log = MemoryStorage(), Topics(3)
    driver(log, storage, 1).run()
    log.append(0, 6)
    for _ in range(3):
        withdraw(log, storage, 1)
    last = driver(log, storage, 2)
    outcome = last.run()
    assert [load.number for load in outcome.loads] == [4] and outcome.loads[0].follows == 0
    assert loaded(storage) == [(0, 0), (0, 1), (0, 3), (0, 4), (0, 6), (0, 7)]
    assert outcome.rejected == "t-0 offset 5: the value is no JSON object"
    verification = verify(last.sink)
    assert (verification.loads, verification.rows, verification.problems) == (2, 6, ())


def test_a_first_load_that_was_withdrawn_binds_the_next_one_to_nothing():
    storage, log = MemoryStorage(), Topics(3)
    withdraw(log, storage, 0, WRONG)
    driver(log, storage, None, since=Since(Earliest())).run()
    assert loaded(storage) == [(0, 0), (0, 1)]


def test_a_later_load_that_was_withdrawn_leaves_the_schema_of_the_place_as_it_was():
    storage, log = MemoryStorage(), Topics(3)
    driver(log, storage, 1).run()
    log.append(0, 3)
    more = DECODING.schema.replace("}]", '}, {"name": "note", "type": ["null", "string"]}]')
    withdraw(log, storage, 0, Decoding("json", more, columns=DECODING.columns))
    with pytest.raises(OtherLayout, match="field order has the type string, and had long"):
        driver(log, storage, 0, WRONG).run()
    driver(log, storage, 1).run()
    assert loaded(storage) == [(0, 0), (0, 1), (0, 3), (0, 4)]


def test_parts_that_a_killed_run_wrote_count_too():
    storage, log = MemoryStorage(), Topics(9)
    killed = driver(log, storage, None, file_rows=3)

    def kill(*_):
        raise Killed

    killed.sink.publish = kill
    with pytest.raises(Killed):
        killed.run()
    reads = len(storage.objects)
    _, message = withdraw(log, storage, 2)
    assert reads and message.startswith("3 messages of load 0 did not decode, more than --max-rejected 2 allows")


def test_a_run_that_published_first_wins_over_one_that_gives_the_load_up():
    storage, log = MemoryStorage(), Topics(3)
    strict = driver(log, storage, 0, name="strict")
    withdrawn = strict.sink.withdraw

    def publish_first(load):
        driver(log, storage, None, name="other").run()
        withdrawn(load)

    strict.sink.withdraw = publish_first
    assert strict.run().rows == 2
    assert loaded(storage) == [(0, 0), (0, 1)] and verify(strict.sink).problems == ()


def test_a_run_whose_load_another_one_withdraws_plans_it_again():
    storage, log = MemoryStorage(), Topics(3)
    slow = driver(log, storage, None, name="slow")
    publish = slow.sink.publish

    def withdraw_first(load, parts):
        if load.number == 0:
            withdraw(log, storage, 0, name="strict")
        return publish(load, parts)

    slow.sink.publish = withdraw_first
    outcome = slow.run()
    assert [load.number for load in outcome.loads] == [1]
    assert loaded(storage) == [(0, 0), (0, 1)] and verify(slow.sink).problems == ()


def test_plans_and_receipts_say_what_was_withdrawn_and_those_of_older_versions_still_load():
    storage, log = MemoryStorage(), Topics(3)
    run, _ = withdraw(log, storage, 0)
    decision = run.sink.find(0).receipt
    assert receipts.from_json(decision.to_json()) == decision and json.loads(decision.to_json())["withdrawn"] is True
    driver(log, storage, 1).run()
    load, receipt = run.sink.find(1).load, run.sink.find(1).receipt
    assert load.after == -1 and loads.from_json(load.to_json()) == load
    assert "withdrawn" not in json.loads(receipt.to_json())
    log.append(0, 1)
    driver(log, storage, 1).run()
    assert "after" not in json.loads(run.sink.find(2).load.to_json())


def test_a_limit_is_a_number_and_needs_decode():
    for options in ({"max_rejected": 0}, {"max_rejected": -1, "layout": Layout(decode=DECODING.to_dict())}):
        with pytest.raises(LoadError, match="--max-rejected is a number from 0 on"):
            LoadOptions(TOPIC, **options)


def test_a_run_that_is_killed_at_any_step_while_it_gives_a_load_up_loses_nothing():
    steps = 0
    while True:
        log, taken = Topics(3, 3), 0
        storage = MemoryStorage()
        driver(log, storage, 2).run()
        log.append(0, 3)

        def step(step_name):
            nonlocal taken
            taken += 1
            if taken > steps:
                raise Killed

        storage.step = step
        try:
            driver(log, storage, 0).run()
        except Killed:
            pass
        except TooManyRejected:
            break
        storage.step = no_step
        last = driver(log, storage, None, name="b")
        last.run()
        assert loaded(storage) == [(0, 0), (0, 1), (0, 3), (0, 4), (1, 0), (1, 1)], f"killed after step {steps}"
        assert verify(last.sink).problems == ()
        steps += 1
    assert steps > 10
