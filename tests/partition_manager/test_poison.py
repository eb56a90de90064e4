"""A batch whose records cannot be decoded is one message: it goes to the dead letters whole, and is never emitted."""

from dataclasses import replace

from partition_manager.config import SpoutConfig
from partition_manager.dead_letter import dead_letter_headers
from tests.partition_manager.test_coordinator import coordinator_of, emit_all
from tests.partition_manager.world import World
from tests.poison import PASSES_LENGTHS, RECORDS

NO_DEAD_LETTERS = SpoutConfig(spout_retry_jitter=0.0, spout_retry_initial_ms=0, spout_dead_letter_topic="")


def world_with_poison():
    """Return a world with the messages 0 and 1, a poison batch at 2 to 21, and the message 22; and the batch."""
    world = World()
    world.log.append()
    world.log.append()
    poison = world.log.append_poison(PASSES_LENGTHS)
    world.log.append(b"after")
    return world, poison


def settle_all(coordinator):
    """Ack every message that the coordinator emits; return their offsets."""
    ids = emit_all(coordinator)
    for id in ids:
        coordinator.ack(id)
    return [id.offset for id in ids]


def test_a_poison_batch_goes_to_the_dead_letters_as_it_lies_and_progress_goes_past_it():
    world, poison = world_with_poison()
    coordinator = coordinator_of(world)
    assert settle_all(coordinator) == [0, 1, 2 + RECORDS]
    world.carry(coordinator, 0)
    (letter,) = world.dead.letters
    assert letter.record.value == poison.data and letter.record.key is None
    assert (letter.reason, letter.error, letter.attempts) == ("poison", poison.reason, 1)
    assert coordinator.status()[0].watermark == 3 + RECORDS
    counts = coordinator.counts
    assert (counts.poison_batches, counts.dead_lettered, counts.acked) == (1, 1, 3)


def test_the_dead_letter_names_topic_partition_offsets_id_and_reason():
    world, poison = world_with_poison()
    coordinator = coordinator_of(world)
    settle_all(coordinator)
    world.carry(coordinator, 0)
    headers = {name.removeprefix("flakelog-dead-"): value for name, value in dead_letter_headers(world.dead.letters[0])}
    assert headers["topic"] == b"flights" and headers["partition"] == b"0"
    assert (headers["offset"], headers["last-offset"]) == (b"2", b"%d" % (1 + RECORDS))
    assert headers["id"] == b"%d" % poison.first_id
    assert headers["reason"] == b"poison" and headers["error"] == poison.reason.encode()


def test_over_a_broker_without_ids_the_letter_is_the_same_without_an_id():
    """Apache Kafka keeps no ids."""
    world, poison = world_with_poison()
    world.log.poison[0] = [replace(poison, first_id=None)]
    coordinator = coordinator_of(world)
    settle_all(coordinator)
    world.carry(coordinator, 0)
    headers = dict(dead_letter_headers(world.dead.letters[0]))
    assert "flakelog-dead-id" not in headers and headers["flakelog-dead-offset"] == b"2"


def test_the_log_names_a_poison_batch_once():
    world, poison = world_with_poison()
    coordinator = coordinator_of(world)
    coordinator.take_notes()
    settle_all(coordinator)
    (note,) = coordinator.take_notes()
    text = "flights-0 the batch of offsets 2 to 21 cannot be decoded, it goes to the dead letters: "
    assert note.text.startswith(text)


def test_progress_waits_until_the_dead_letter_is_safe():
    world, _ = world_with_poison()
    world.dead.slow = True
    coordinator = coordinator_of(world)
    settle_all(coordinator)
    world.carry(coordinator, 0)
    assert coordinator.status()[0].watermark == 2
    world.dead.confirm()
    assert coordinator.status()[0].watermark == 3 + RECORDS


def test_without_a_dead_letter_topic_the_batch_stays_pending_like_a_message_that_cannot_be_decoded():
    world, _ = world_with_poison()
    coordinator = coordinator_of(world, config=NO_DEAD_LETTERS)
    assert settle_all(coordinator) == [0, 1, 2 + RECORDS]
    for now_ms in range(0, 100, 10):
        assert emit_all(coordinator, now_ms) == []
    assert coordinator.status()[0].watermark == 2 and not world.dead.letters
    assert "it stays, because there is no dead-letter topic" in coordinator.take_notes()[-1].text


def test_after_a_restart_a_buried_batch_is_not_buried_again():
    world, _ = world_with_poison()
    coordinator = coordinator_of(world)
    ids = emit_all(coordinator)
    coordinator.ack(ids[-1])  # the messages before the batch stay open, so progress has the batch as done
    world.carry(coordinator, 0)
    coordinator.commit(0)
    world.carry(coordinator, 0)
    assert len(world.dead.letters) == 1
    again = coordinator_of(world, owner="other")
    assert settle_all(again) == [0, 1]
    world.carry(again, 0)
    assert len(world.dead.letters) == 1 and again.status()[0].watermark == 3 + RECORDS


def test_a_batch_is_buried_though_retention_removed_its_first_offsets():
    """DeleteRecords may set the log's start inside a batch."""
    world, poison = world_with_poison()
    world.log.retain_from(0, 5)
    coordinator = coordinator_of(world)
    assert settle_all(coordinator) == [2 + RECORDS]
    world.carry(coordinator, 0)
    (letter,) = world.dead.letters
    assert (letter.record.offset, letter.record.id, letter.record.value) == (5, None, poison.data)


def test_every_other_message_is_emitted_once_however_small_the_fetches_are():
    config = SpoutConfig(spout_fetch_max_records=1, spout_max_uncommitted=2)
    world = World()
    for _ in range(4):
        world.log.append()
        world.log.append_poison(PASSES_LENGTHS)
    coordinator = coordinator_of(world, config=config)
    emitted = []
    for _ in range(10):
        emitted += settle_all(coordinator)
        world.carry(coordinator, 0)
    assert emitted == [n * (1 + RECORDS) for n in range(4)]
    assert len(world.dead.letters) == 4
