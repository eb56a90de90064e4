"""The partitions of a task (storm-kafka's ZkCoordinator, and behaviour that it lacks)."""

import pytest

from broker.client.offset_spec import Earliest
from idgen.settings import InvalidSetting
from partition_manager.asks import Asks
from partition_manager.config import SpoutConfig
from partition_manager.coordinator import TURN_MESSAGES, MessageId, PartitionCoordinator
from partition_manager.ports import Bounds, Failed, Fenced, FindBounds, ListPartitions, Loaded, LoadOffset, SaveOffset
from partition_manager.retry import RetryPolicy
from partition_manager.source import Source
from partition_manager.task_partition import Phase
from tests.partition_manager.world import World

CONFIG = SpoutConfig(spout_retry_jitter=0.0)


def coordinator_of(world, owner="me", task=0, tasks=1, topology_id="t", config=CONFIG, now_ms=0):
    coordinator = PartitionCoordinator(Source("flights", topology_id, "t", Earliest(), config), task, tasks, owner)
    coordinator.start(now_ms)
    world.carry(coordinator, now_ms)
    return coordinator


def emit_all(coordinator, now_ms=0):
    ids = []
    while (emission := coordinator.next(now_ms)) is not None:
        ids.append(emission[0])
    return ids


def world_of(*messages):
    """Return a world whose log has the given number of messages in each partition."""
    world = World(len(messages))
    for partition, count in enumerate(messages):
        for _ in range(count):
            world.log.append(partition=partition)
    return world


def test_partitions_take_turns():
    """A turn is many messages long, because acks of one partition cost less together."""
    most = TURN_MESSAGES
    ids = emit_all(coordinator_of(world_of(2 * most + 1, 1, most + 2)))
    turns = [(0, most), (1, 1), (2, most), (0, most), (2, 2), (0, 1)]
    assert [id.partition for id in ids] == [partition for partition, messages in turns for _ in range(messages)]


def test_no_two_emissions_share_an_id():
    world = world_of(5, 5)
    coordinator = coordinator_of(world)
    ids = emit_all(coordinator)
    for id in ids:
        coordinator.fail(id, 0)
    ids += emit_all(coordinator, now_ms=100)
    assert len(set(ids)) == 20 and len({id.ticket for id in ids}) == 20


def test_a_new_partition_joins_at_the_next_look_at_the_topic():
    world = world_of(1)
    coordinator = coordinator_of(world)
    world.log.kept[1] = {}
    world.log.append(partition=1)
    world.carry(coordinator, 59_999)
    assert [s.partition for s in coordinator.status()] == [0]
    world.carry(coordinator, 60_000)
    assert [s.partition for s in coordinator.status()] == [0, 1]
    assert {id.partition for id in emit_all(coordinator)} == {0, 1}


def test_a_revoked_partition_is_committed_and_its_later_acks_are_stale():
    world = world_of(1, 2)
    coordinator = coordinator_of(world)
    ids = {(id.partition, id.offset): id for id in emit_all(coordinator)}
    assert coordinator.ack(ids[1, 0])
    records = world.log.kept.pop(1)
    world.carry(coordinator, 60_000)
    assert [s.partition for s in coordinator.status()] == [0]
    assert not coordinator.ack(ids[1, 1])
    assert coordinator.counts.acked == 1, "what a revoked partition has done is still counted"
    world.log.kept[1] = records
    world.carry(coordinator, 120_000)
    assert [s.watermark for s in coordinator.status()] == [0, 1]


def test_acks_of_an_earlier_assignment_do_not_settle_what_was_emitted_again():
    """An ack from an earlier assignment is stale although its offset and attempt number match: the tickets differ."""
    world = world_of(1, 1)
    coordinator = coordinator_of(world)
    old = next(id for id in emit_all(coordinator) if id.partition == 1)
    records = world.log.kept.pop(1)
    world.carry(coordinator, 60_000)
    world.log.kept[1] = records
    world.carry(coordinator, 120_000)
    (new,) = [id for id in emit_all(coordinator, 120_000) if id.partition == 1]
    assert new.offset == old.offset and not coordinator.ack(old)
    assert coordinator.ack(new)


def test_stop_stores_what_is_settled_and_then_is_idle():
    world = world_of(3)
    coordinator = coordinator_of(world)
    ids = emit_all(coordinator)
    coordinator.ack(ids[0])
    coordinator.stop(10)
    assert not coordinator.idle
    world.carry(coordinator, 10)
    assert coordinator.idle and coordinator.next_deadline_ms() is None
    assert [s.watermark for s in coordinator_of(world, owner="next").status()] == [1]


def test_each_write_names_the_version_the_one_before_was_answered_with():
    world = world_of(3)
    coordinator = coordinator_of(world)
    versions = []
    for id, now_ms in zip(emit_all(coordinator), (2_000, 4_000, 6_000)):
        coordinator.ack(id)
        (save,) = [ask for ask in coordinator.take_asks(now_ms) if isinstance(ask.request, SaveOffset)]
        versions.append(save.request.version)
        world.store().ask(save.request, lambda answer, ask=save: coordinator.answered(ask.number, answer, now_ms))
    assert versions == [0, 1, 2]


def test_a_stop_while_a_write_is_under_way_stores_what_came_after_it():
    world = world_of(2)
    coordinator = coordinator_of(world)
    first, second = emit_all(coordinator)
    coordinator.ack(first)
    (save,) = [ask for ask in coordinator.take_asks(2_000) if isinstance(ask.request, SaveOffset)]
    coordinator.ack(second)
    coordinator.stop(2_000)
    world.store().ask(save.request, lambda answer: coordinator.answered(save.number, answer, 2_000))
    world.carry(coordinator, 2_000)
    assert coordinator.idle
    assert [s.watermark for s in coordinator_of(world, owner="next").status()] == [2]


def test_a_claim_fences_a_write_of_the_former_owner_that_is_still_on_its_way():
    world = world_of(2)
    old = coordinator_of(world, owner="old")
    for id in emit_all(old):
        old.ack(id)
    (late,) = [ask for ask in old.take_asks(2_000) if isinstance(ask.request, SaveOffset)]
    new = coordinator_of(world, owner="new")
    answers = []
    world.store().ask(late.request, answers.append)
    assert isinstance(answers[0], Fenced)
    assert [s.watermark for s in new.status()] == [0], "what was not stored comes again"


def test_a_claim_that_finds_a_newer_document_reads_it_again():
    world = world_of(5)
    old = coordinator_of(world, owner="old")
    new = PartitionCoordinator(Source("flights", "t", "t", Earliest(), CONFIG), 0, 1, "new")
    new.start(0)
    store = world.store()
    for request in (ListPartitions, LoadOffset, FindBounds):
        (ask,) = new.take_asks(0)
        assert isinstance(ask.request, request)
        port = world.port_of(ask.request, store)
        port.ask(ask.request, lambda answer, number=ask.number: new.answered(number, answer, 0))
    for id in emit_all(old):
        old.ack(id)
    world.carry(old, 2_000)
    world.carry(new, 2_000)
    assert [s.watermark for s in new.status()] == [5]


def test_another_topologys_progress_is_ignored_only_if_so_configured():
    """0.9.3's forceFromStart: another topology id starts over, the same id continues."""
    world = world_of(3)
    old = coordinator_of(world, topology_id="old")
    for id in emit_all(old):
        old.ack(id)
    world.carry(old, 2_000)
    starting_over = SpoutConfig(spout_ignore_stored=True)
    assert coordinator_of(world, "a", topology_id="new").status()[0].watermark == 3
    assert coordinator_of(world, "b", topology_id="newer", config=starting_over).status()[0].watermark == 0
    assert coordinator_of(world, "c", topology_id="newer", config=starting_over).status()[0].watermark == 0


def test_the_same_topology_id_goes_on_also_when_others_are_ignored():
    world = world_of(3)
    config = SpoutConfig(spout_ignore_stored=True)
    first = coordinator_of(world, "a", config=config)
    for id in emit_all(first):
        first.ack(id)
    world.carry(first, 2_000)
    assert coordinator_of(world, "b", config=config).status()[0].watermark == 3


def test_a_document_nobody_understands_is_left_alone_and_shown():
    world = world_of(1)
    answers = []
    store = world.store()
    store.ask(SaveOffset("flights", 0, b"garbage", -1), answers.append)
    coordinator = coordinator_of(world)
    (status,) = coordinator.status()
    assert status.phase is Phase.BROKEN and "garbage" in status.error
    assert emit_all(coordinator) == []
    store.ask(LoadOffset("flights", 0), answers.append)
    assert answers[-1] == Loaded(b"garbage", 0)


def test_acks_for_partitions_it_never_had_are_stale():
    coordinator = coordinator_of(world_of(1))
    stranger = MessageId("flights", 9, 0, 1)
    assert not coordinator.ack(stranger) and not coordinator.fail(stranger, 0)
    assert not coordinator.fan_out(stranger, 1) and not coordinator.reject(stranger, 0, "x")


def test_what_failed_is_asked_again_after_a_growing_pause():
    heard = []
    asks = Asks(RetryPolicy(100, 2.0, 1_000), lambda owner, request, answer, failures: heard.append(failures))
    answers = []
    asks.ask("me", FindBounds("t", 0), lambda answer, now_ms: answers.append((answer, now_ms)), 0)
    for at_ms in (0, 100, 300):
        assert asks.take(at_ms - 1) == []
        (ask,) = asks.take(at_ms)
        asks.answered(ask.number, Failed("down"), at_ms)
    (ask,) = asks.take(700)
    asks.answered(ask.number, Bounds(0, 1), 700)
    asks.answered(ask.number, Bounds(0, 2), 700)
    assert answers == [(Bounds(0, 1), 700)] and heard == [1, 2, 3] and len(asks) == 0


def test_a_forgotten_owners_answers_are_ignored_and_nothing_more_is_asked():
    asks = Asks(RetryPolicy(), lambda *heard: None)
    answers = []
    for owner in ("a", "b"):
        asks.ask(owner, FindBounds(owner, 0), lambda answer, now_ms: answers.append(answer), 0)
    first, _ = asks.take(0)
    asks.ask("a", FindBounds("a", 1), lambda answer, now_ms: answers.append(answer), 0)
    asks.forget("a")
    assert asks.take(0) == []
    asks.answered(first.number, Bounds(0, 1), 0)
    assert answers == [] and len(asks) == 1


@pytest.mark.parametrize(
    "wrong, reason",
    [
        ({"spout_max_uncommitted": 0}, "flakelog.spout.max.uncommitted=0: must be at least 1"),
        ({"spout_out_of_range": "middle"}, "must be one of earliest, latest"),
        ({"spout_retry_max_ms": 5}, r"must be at least flakelog.spout.retry.initial.ms \(100\)"),
        ({"spout_retry_jitter": 1.5}, "must be a share"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_its_name(wrong, reason):
    with pytest.raises(InvalidSetting, match=reason):
        SpoutConfig(**wrong)


def errors_of(coordinator):
    return [note.text for note in coordinator.take_notes() if note.level == "error"]


def test_a_takeover_is_one_line_in_both_runs_however_many_partitions_there_are():
    world = world_of(*[2] * 20)
    old = coordinator_of(world, owner="old-run.1")
    ids = emit_all(old)
    old.take_notes()
    new = coordinator_of(world, owner="new-run.1")
    (text,) = [note.text for note in new.take_notes() if "old-run" in note.text]
    assert text.startswith("continues the progress of run old-run in ")
    for id in ids:
        old.ack(id)
    world.carry(old, 2_000)
    assert {status.phase for status in old.status()} == {Phase.FENCED}
    (error,) = errors_of(old)
    assert error.startswith("another process took over flights-0, this one reads it no longer: ")
    world.carry(old, 59_999)
    assert errors_of(old) == []
    world.carry(old, 60_000)
    (error,) = errors_of(old)
    assert error.startswith("still not read, another process took them over: flights-0, ") and "and 10 more" in error


def test_unusable_progress_is_an_error_that_says_how_to_go_on_and_is_repeated():
    world = world_of(1, 1)
    world.store().ask(SaveOffset("flights", 1, b'{"torn', -1), lambda answer: None)
    source = Source("flights", "t", "t", Earliest(), CONFIG, stored_at="progress/nodes/flakelog-spouts/t.log")
    coordinator = PartitionCoordinator(source, 0, 1, "me")
    coordinator.start(0)
    world.carry(coordinator, 0)
    (error,) = errors_of(coordinator)
    assert error.startswith("flights-1 is not read: stored offset document: ")
    assert "`flakelog spout progress show` shows it" in error
    assert error.endswith("stop the topology and delete progress/nodes/flakelog-spouts/t.log/partition_1")
    assert [id.partition for id in emit_all(coordinator)] == [0], "the other partitions are read"
    world.carry(coordinator, 60_000)
    assert errors_of(coordinator) == ["still not read, unusable progress: flights-1"]


def test_a_log_of_bad_messages_names_ten_of_them_and_the_number_of_the_others():
    world = world_of(30)
    coordinator = coordinator_of(world)
    for id in emit_all(coordinator):
        coordinator.reject(id, 0, "no JSON")
    world.carry(coordinator, 2_000)
    warnings = [note.text for note in coordinator.take_notes() if note.level == "warn"]
    assert warnings[0] == "flights-0 offset 0 cannot be decoded, it goes to the dead letters: no JSON"
    assert len(warnings) == 11 and warnings[-1] == "20 more messages were given up; the dead-letter topic names each"


def test_a_letter_that_is_refused_for_good_is_logged_and_counted_and_not_sent_again():
    world = world_of(2)
    world.dead.refuses = "RECORD_TOO_LARGE"
    coordinator = coordinator_of(world)
    first, second = emit_all(coordinator)
    coordinator.reject(first, 0, "no JSON")
    coordinator.ack(second)
    world.carry(coordinator, 60_000)
    assert errors_of(coordinator) == ["flights-0 offset 0 has no dead letter: RECORD_TOO_LARGE"]
    assert coordinator.counts.refused == 1 and coordinator.status()[0].watermark == 2


def test_an_outage_of_the_broker_is_one_line_when_it_begins_and_one_when_it_ends():
    world = world_of(1, 1, 1)
    coordinator = coordinator_of(world)
    coordinator.take_notes()
    held, world.log._held = world.log._held, []
    for _, answer in held:
        answer(Failed("connection refused"))
    (began,) = coordinator.take_notes()
    assert began == ("warn", "flights-0 Fetch failed: connection refused; it is asked again")
    world.carry(coordinator, 1_000)
    assert coordinator.take_notes() == [], "a fetch is answered when there is a message"
    for partition in range(3):
        world.log.append(partition=partition)
    (ended,) = coordinator.take_notes()
    assert ended == ("info", "flights-2 Fetch works again, after: connection refused")


def test_a_released_partition_is_no_part_of_an_outage_any_longer():
    world = world_of(1, 1)
    coordinator = coordinator_of(world)
    for _, answer in world.log._held:
        answer(Failed("connection refused"))
    world.log._held.clear()
    assert len(coordinator._failing) == 2
    coordinator.stop(0)
    world.carry(coordinator, 0)
    assert coordinator.idle and len(coordinator._failing) == 0


def test_at_most_once_a_fetch_answered_while_the_last_progress_is_stored_is_left_to_the_next_owner():
    world = world_of(2)
    config = SpoutConfig(spout_guarantee="at-most-once", spout_fetch_max_records=2)
    coordinator = coordinator_of(world, config=config)
    id, _ = coordinator.next(0)
    coordinator.stop(0)
    (save,) = [ask for ask in coordinator.take_asks(0) if isinstance(ask.request, SaveOffset)]
    for _ in range(5):
        world.log.append()  # answers the fetch that is held
    assert coordinator.take_asks(0) == [], "nothing more is stored than what was emitted"
    world.store().ask(save.request, lambda answer: coordinator.answered(save.number, answer, 0))
    assert coordinator.idle
    again = coordinator_of(world, owner="next", config=config)
    assert [id.offset for id in emit_all(again)][0] == id.offset + 1


def test_the_start_of_many_partitions_is_ten_lines_and_their_number():
    coordinator = coordinator_of(world_of(*[1] * 40))
    texts = [note.text for note in coordinator.take_notes()]
    assert texts == [f"flights-{n} begins at offset 0: nothing stored" for n in range(10)]
    coordinator.take_asks(2_000)
    assert [note.text for note in coordinator.take_notes()] == ["30 more partitions begin to be read"]


def unable_to_store():
    """Return a world of one message, which is acked, and its coordinator, whose progress could not be stored."""
    world = world_of(1)
    coordinator = coordinator_of(world)
    (id,) = emit_all(coordinator)
    coordinator.ack(id)
    world.session.cut()
    coordinator.commit(2_000)
    world.carry(coordinator, 2_000)
    return world, coordinator


def problem_of(coordinator):
    (status,) = coordinator.status()
    return status.error


def test_a_problem_of_storing_ends_when_progress_is_stored_although_no_message_comes():
    world, coordinator = unable_to_store()
    assert problem_of(coordinator)
    world.session.heal()
    world.carry(coordinator, 3_000)
    assert problem_of(coordinator) == ""


def test_a_problem_of_storing_stays_while_messages_are_fetched():
    world, coordinator = unable_to_store()
    problem = problem_of(coordinator)
    world.log.append()
    world.carry(coordinator, 2_000)
    assert len(emit_all(coordinator)) == 1 and problem_of(coordinator) == problem != ""


def test_a_problem_of_reading_ends_with_the_fetch_and_stays_while_progress_is_stored():
    world = world_of(1)
    coordinator = coordinator_of(world)
    (id,) = emit_all(coordinator)
    world.log.down = "connection refused"
    world.log.append()
    world.carry(coordinator, 0)
    assert problem_of(coordinator) == "connection refused"
    coordinator.ack(id)
    coordinator.commit(100)
    world.carry(coordinator, 100)
    assert coordinator.watermarks()[world.log.topic_id, 0] == 1 and problem_of(coordinator) == "connection refused"
    world.log.down = None
    world.carry(coordinator, 1_000)
    assert problem_of(coordinator) == "" and len(emit_all(coordinator)) == 1


def test_the_problems_of_two_dead_letters_end_one_after_the_other():
    world = world_of(2)
    coordinator = coordinator_of(world)
    first, second = emit_all(coordinator)
    world.dead.down = "NOT_ENOUGH_REPLICAS"
    coordinator.reject(first, 0, "no JSON")
    world.carry(coordinator, 0)
    coordinator.reject(second, 200, "no JSON")
    world.carry(coordinator, 200)
    world.dead.down = None
    world.carry(coordinator, 250)
    assert len(world.dead.letters) == 1 and problem_of(coordinator) == "NOT_ENOUGH_REPLICAS"
    world.carry(coordinator, 1_000)
    assert len(world.dead.letters) == 2 and problem_of(coordinator) == ""
