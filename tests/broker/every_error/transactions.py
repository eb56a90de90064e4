"""Rows of the table of errors: transactions and their markers."""

from dataclasses import replace

from broker.steps import ITEMS_AT_ONCE
from broker.txn.transaction import EPOCH_LAST
from broker.wire.errors import ErrorCode as E
from tests.broker.every_error.case import LONG, NOWHERE, OFFSETS, Case, full, offline
from tests.broker.every_error.produce import of_producer

BY_PRODUCER = {
    "AddPartitionsToTxn": lambda w, producer, **more: w.add(producer, **more),
    "AddOffsetsToTxn": lambda w, producer, **more: w.add_offsets(producer, **more),
    "EndTxn": lambda w, producer, **more: w.end(producer, **more),
}

BY_COORDINATOR = {
    **{api: lambda w, ask=ask: ask(w, (1, 0)) for api, ask in BY_PRODUCER.items()},
    "InitProducerId": lambda w: w.init(w.transactional_id),
    "DescribeTransactions": lambda w: transactions(w, w.transactional_id),
    "ListTransactions": lambda w: w.ask("ListTransactions", {"state_filters": [], "producer_id_filters": []}),
}


def transactions(world, *names):
    return world.ask("DescribeTransactions", {"transactional_ids": names})


def listed(world, pattern):
    fields = {"state_filters": [], "producer_id_filters": [], "transactional_id_pattern": pattern}
    return world.ask("ListTransactions", fields)


def loading(world):
    """Give the coordinator many transactional ids, which it loads in several slices, and let it load them."""
    world.producer()
    transactions, now = world.broker.services.coordinators.transactions, world.broker.now
    led = transactions.find(world.transactional_id)
    for n in range(ITEMS_AT_ONCE):
        led.run(led.core.init_producer_id(f"id-{n}", 1_000, None, now), now)
    transactions.partitions.load_again(led.partition, now)
    return world


def fenced(world):
    """Return a producer whose transactional id another producer has taken."""
    old = world.producer()
    world.producer()
    return old


def ended(world):
    """Return a producer that has committed a transaction."""
    producer = world.producer()
    world.add(producer, version=3)
    world.write(producer)
    world.end(producer, version=3)
    world.until(lambda: transactions(world, world.transactional_id), lambda transaction: complete(transaction))
    return producer


def complete(answer):
    return answer.transaction_states[0].transaction_state.startswith("Complete")


def ongoing(world):
    producer = world.producer()
    world.add(producer, version=3)
    return producer


def stuck(world):
    """Return a producer whose EndTxn waits for a partition that cannot take its marker."""
    producer = ongoing(world)
    offline(world, world.topic)
    world.end(producer, version=3)
    return producer


def without_ids(world):
    """Use up the reserved producer ids, so that the next one needs a commit of the metadata."""
    producer_ids = world.broker.services.local.producer_ids
    while producer_ids.left:
        producer_ids.take()
    return world


def end_in_last_epoch(world):
    """End a transaction in the last epoch, so that the next transaction needs another producer id."""
    producer = ongoing(world)
    core = world.broker.services.coordinators.transactions.find(world.transactional_id).core
    core.apply(replace(core.get(world.transactional_id), producer_epoch=EPOCH_LAST))
    full(without_ids(world))
    return world.end((producer[0], EPOCH_LAST))


def with_offsets(world):
    """Return a producer whose transaction includes the group."""
    producer = world.producer()
    world.coordinated()
    world.add_offsets(producer, version=4)
    return producer


def of_member_in(world, wrong):
    """Send a TxnOffsetCommit on behalf of a group member; `wrong` overrides the member's fields."""
    member, generation = world.member()
    member_fields = {"member_id": member, "generation_id": generation, "group_instance_id": "seat"} | wrong
    return world.commit_in(with_offsets(world), **member_fields)


def init_again(world, producer):
    """Send InitProducerId with the producer's previous id and epoch (KIP-360)."""
    return world.init(world.transactional_id, producer=producer)


def init_with_open(world):
    world.producer()
    ongoing(world)
    return world.init(world.transactional_id)


TRANSACTED = [
    *(Case(api, E.PRODUCER_FENCED, lambda w: BY_PRODUCER[w.name](w, fenced(w)), 2) for api in BY_PRODUCER),
    *(Case(api, E.INVALID_PRODUCER_EPOCH, lambda w: BY_PRODUCER[w.name](w, fenced(w)), newest=1)
      for api in BY_PRODUCER),
    *(Case(api, E.INVALID_PRODUCER_ID_MAPPING, lambda w: w.producer() and BY_PRODUCER[w.name](w, (1 << 40, 0)))
      for api in BY_PRODUCER),
    *(Case(api, E.INVALID_PRODUCER_ID_MAPPING,
           lambda w: BY_PRODUCER[w.name](w, w.producer(), transactional_id="nobody")) for api in BY_PRODUCER),
    *(Case(api, E.INVALID_REQUEST, lambda w: BY_PRODUCER[w.name](w, w.producer(), transactional_id=""))
      for api in BY_PRODUCER),
    *(Case(api, E.CONCURRENT_TRANSACTIONS, lambda w: BY_PRODUCER[w.name](w, stuck(w)), newest=4, inside=True)
      for api in BY_PRODUCER),
    Case("AddPartitionsToTxn", E.TOPIC_AUTHORIZATION_FAILED,
         lambda w: w.coordinated() or w.add(w.producer(), (OFFSETS, 0))),
    Case("InitProducerId", E.KAFKA_STORAGE_ERROR, lambda w: full(without_ids(w)).init(), inside=True),
    Case("EndTxn", E.KAFKA_STORAGE_ERROR, end_in_last_epoch, oldest=5, inside=True),
    Case("InitProducerId", E.INVALID_REQUEST, lambda w: w.producer() and w.init("")),
    Case("InitProducerId", E.INVALID_TRANSACTION_TIMEOUT, lambda w: w.producer() and w.init("x", 0)),
    Case("InitProducerId", E.INVALID_TRANSACTION_TIMEOUT, lambda w: w.producer() and w.init("x", 1 << 30)),
    Case("InitProducerId", E.INVALID_REQUEST, lambda w: w.init(producer=(7, -1)), oldest=3),
    Case("InitProducerId", E.CONCURRENT_TRANSACTIONS, init_with_open),
    Case("InitProducerId", E.INVALID_PRODUCER_EPOCH, lambda w: twice_fenced(w), 3, 3),
    Case("InitProducerId", E.PRODUCER_FENCED, lambda w: twice_fenced(w), 4),
    Case("InitProducerId", E.PRODUCER_FENCED, lambda w: w.producer() and init_again(w, (1 << 40, 0)), 4),
    Case("AddPartitionsToTxn", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: w.add(w.producer(), (NOWHERE, 0))),
    Case("AddPartitionsToTxn", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: w.add(w.producer(), (w.topic, 7))),
    Case("AddPartitionsToTxn", E.OPERATION_NOT_ATTEMPTED, lambda w: w.add(w.producer(), (w.topic, 0), (NOWHERE, 0))),
    Case("EndTxn", E.INVALID_TXN_STATE, lambda w: w.end(w.producer()), newest=4),
    Case("EndTxn", E.INVALID_TXN_STATE, lambda w: w.end(ended(w), commit=False), newest=4),
    Case("TxnOffsetCommit", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: w.commit_in(with_offsets(w), NOWHERE)),
    Case("TxnOffsetCommit", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: w.commit_in(with_offsets(w), partition=7)),
    Case("TxnOffsetCommit", E.OFFSET_METADATA_TOO_LARGE, lambda w: w.commit_in(with_offsets(w), note=LONG)),
    Case("TxnOffsetCommit", E.INVALID_REQUEST,
         lambda w: w.coordinated() or w.commit_in(w.producer(), transactional_id="")),
    Case("TxnOffsetCommit", E.INVALID_GROUP_ID, lambda w: w.commit_in(with_offsets(w), group_id="")),
    Case("TxnOffsetCommit", E.UNKNOWN_MEMBER_ID,
         lambda w: of_member_in(w, {"member_id": "x", "group_instance_id": None}), 3),
    Case("TxnOffsetCommit", E.FENCED_INSTANCE_ID, lambda w: of_member_in(w, {"member_id": "x"}), 3),
    Case("TxnOffsetCommit", E.ILLEGAL_GENERATION, lambda w: of_member_in(w, {"generation_id": 7}), 3),
    Case("TxnOffsetCommit", E.INVALID_PRODUCER_EPOCH, lambda w: w.coordinated() or w.commit_in(fenced(w))),
    Case("TxnOffsetCommit", E.INVALID_PRODUCER_ID_MAPPING, lambda w: with_offsets(w) and w.commit_in((1 << 40, 0))),
    Case("TxnOffsetCommit", E.INVALID_TXN_STATE, lambda w: w.coordinated() or w.commit_in(w.producer()), newest=3),
    Case("TxnOffsetCommit", E.TRANSACTION_ABORTABLE, lambda w: w.coordinated() or w.commit_in(w.producer()), 4, 4),
    # Kafka adds the group automatically from v5 on, as it adds a partition from Produce v12 on.
    Case("TxnOffsetCommit", E.TRANSACTION_ABORTABLE, lambda w: w.coordinated() or w.commit_in(w.producer()), 5,
         kafka=E.NONE),
    Case("WriteTxnMarkers", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: w.mark((1, 0), NOWHERE)),
    Case("WriteTxnMarkers", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: w.mark((1, 0), partition=7)),
    Case("WriteTxnMarkers", E.INVALID_PRODUCER_EPOCH, lambda w: mark_late(w)),
    Case("WriteTxnMarkers", E.TRANSACTION_COORDINATOR_FENCED, lambda w: mark_earlier(w)),
    Case("WriteTxnMarkers", E.BROKER_NOT_AVAILABLE, lambda w: mark_many_twice(w), inside=True,
         settings={"marker_requests_max": 1}),
    Case("WriteTxnMarkers", E.KAFKA_STORAGE_ERROR, lambda w: w.mark((1, 0), offline(w)), inside=True),
    Case("WriteTxnMarkers", E.REQUEST_TIMED_OUT, lambda w: mark_unsynced(w), inside=True),
    Case("WriteTxnMarkers", E.NOT_LEADER_OR_FOLLOWER, lambda w: mark_while_searching(w), inside=True),
    *(Case(api, E.COORDINATOR_LOAD_IN_PROGRESS, lambda w, ask=ask: ask(loading(w)), inside=True)
      for api, ask in BY_COORDINATOR.items()),
    Case("ListTransactions", E.INVALID_REGULAR_EXPRESSION, lambda w: listed(w, "(a"), oldest=2),
    *(Case("ListTransactions", E.INVALID_REGULAR_EXPRESSION, lambda w, pattern=pattern: listed(w, pattern), oldest=2,
           kafka=E.NONE) for pattern in (r"\bpay.*", "(?m)^pay", r"\pL+")),
    Case("ListTransactions", E.INVALID_REGULAR_EXPRESSION, lambda w: w.producer() and listed(w, "(a|pay.*)*x"), 2,
         inside=True, settings={"transactional_id_pattern_steps_max": 5}),
    Case("DescribeTransactions", E.TRANSACTIONAL_ID_NOT_FOUND, lambda w: w.producer() and transactions(w, "nobody")),
    Case("DescribeTransactions", E.INVALID_REQUEST, lambda w: w.producer() and transactions(w, "")),
]  # fmt: skip


def mark_many_twice(world):
    """Send markers for many partitions while the markers of another request are being written."""
    for _ in range(2):
        world.send("WriteTxnMarkers", world.markers((1, 0), partitions=range(100)))
    world.receive("WriteTxnMarkers")
    return world.receive("WriteTxnMarkers")


def mark_late(world):
    """Send a marker of a producer epoch that is over."""
    topic = world.create(1)
    world.produce(topic, of_producer(world, epoch=3), version=9)
    return world.mark((1_000_000 + world.number, 1), topic)


def mark_unsynced(world):
    """Send a marker for a topic with durable acks while nothing gets onto the disk."""
    topic = world.create(1, flakelog_durable_acks="true")
    world.broker.hold_syncs()
    return world.mark((1, 0), topic)


def mark_earlier(world):
    """Send a marker with an earlier coordinator epoch than the partition has seen."""
    topic, producer = world.create(1), (1_000_000 + world.number, 0)
    world.mark(producer, topic, coordinator_epoch=0)
    return world.mark(producer, topic, coordinator_epoch=-1)


def mark_while_searching(world):
    """Send a marker while the search for stranded transactions has not decided about an open one of its producer."""
    producer = world.producer()
    world.add(producer, version=3)
    world.write(producer)
    world.broker.services.coordinators.transactions._stranded.remember()
    return world.mark(producer)


def twice_fenced(world):
    """Ask for a producer's next epoch after two other producers have taken its transactional id."""
    old = world.producer()
    world.producer()
    world.producer()
    return init_again(world, old)
