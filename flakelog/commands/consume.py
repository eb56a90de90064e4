"""`flakelog consume`: read the messages of topics, with their ids, in the order of their arrival."""

import heapq
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from itertools import chain, islice
from typing import TYPE_CHECKING

import click

from broker.client.offset_spec import AtOffset, Earliest, Last, Latest, OffsetSpec
from coordination.listing import listed
from flakelog.commands.arguments import PARTITION, Whole
from flakelog.commands.completion import GroupType, TopicType
from flakelog.commands.exit_codes import ends_at_sigterm, fail
from flakelog.commands.group_end import GroupEnd, missing
from flakelog.commands.produce_input import EscapedType
from flakelog.commands.record_format import Formatter, FormatType, by_format, by_json, by_lines
from flakelog.commands.start import STARTS, RangeToRead, StartType, find_starts
from flakelog.commands.terminal import client_of, count_of, json_option, layout_options, print_line, servers_option
from flakelog.commands.waiting import SAY_SECONDS, Patience, answer_seconds

if TYPE_CHECKING:
    from broker.client.blocking import Client
    from broker.client.consumer import Consumer
    from broker.client.consumer_core import Gap
    from broker.client.consumer_figures import ConsumerFigures
    from broker.client.core import TopicInfo
    from broker.client.group_protocol import Partition
    from broker.client.log_record import Record
    from broker.client.records import PoisonBatch
    from idgen.layout import Layout

FOLLOW_WAIT_MS = 250  # the longest that a round of fetches over all partitions waits for new messages
LAST_MAX = 100_000  # the largest N of --from -N: that many messages are in memory, and as many of one partition
# While partitions are merged, one fetch of each is in memory. They share FETCHED_BYTES; a larger batch comes whole.
FETCHED_BYTES, FETCH_BYTES_MIN, FETCH_BYTES_MAX = 64 << 20, 16 << 10, 1 << 20
HELD_BACK_MAX = 10  # partitions that are named
_NAMES_IT = "`flakelog transactions list --state Ongoing` names it"
GROUP_POLL_MS = 250
GROUP_POLL_RECORDS = 500  # Kafka's max.poll.records
COMMIT_SECONDS = 1.0
AWAY_PAUSE_SECONDS = 0.2
NEW_PARTITIONS_SECONDS = 5.0  # how often --follow looks for partitions that were added


@click.command()
@click.argument("topics", nargs=-1, required=True, type=TopicType(), metavar="TOPIC...")
@click.option("--partition", "partitions", type=PARTITION, multiple=True, help="Only this one; repeatable.")
@click.option("--from", "start", type=StartType(), default="earliest", show_default=True, metavar="PLACE", help=STARTS)
@click.option("--count", type=Whole(1), help="Stop after so many messages.")
@click.option("--follow", is_flag=True, help="At the end wait for more, until Ctrl-C or SIGTERM.")
@click.option(
    "--group", "-G", type=GroupType(), metavar="NAME", help="Go on where this group is, and commit what was printed."
)
@click.option("--committed", is_flag=True, help="None of transactions that were aborted, or are open.")
@click.option("--format", "-f", type=FormatType(), help="Print by a format with kcat's tokens: '%t-%p %o %i: %s\\n'.")
@click.option("--key-separator", "-K", type=EscapedType(), metavar="TEXT", help="Print KEY TEXT VALUE.")
@click.option(
    "--delimiter",
    "-D",
    type=EscapedType(),
    default="\\n",
    show_default=True,
    metavar="TEXT",
    help="Print TEXT after each message.",
)
@click.option("--null", "-Z", "nulls", is_flag=True, help="Print NULL for null keys, and for tombstones.")
@click.option("--show-ids", is_flag=True, help="Print partition, offset, id and its time before each value.")
@servers_option
@json_option
@layout_options
def consume(
    topics: tuple[str, ...],
    partitions: tuple[int, ...],
    start: OffsetSpec,
    count: int | None,
    follow: bool,
    group: str | None,
    committed: bool,
    format: str | None,
    key_separator: bytes | None,
    delimiter: bytes,
    nulls: bool,
    show_ids: bool,
    servers: str,
    as_json: bool,
    layout: "Layout",
) -> None:
    """Print the messages of the TOPICs, and with --follow new ones as they come.

    Partitions are merged by the messages' ids, which is the order in which they reached the log; with --group as they
    come. A batch whose records cannot be decoded is skipped, and named on stderr. --from -10 is the last ten messages
    of all. With --follow, a server that restarts is waited for, as long as --timeout says.

    \b
    Tokens of --format, kcat's and %i:
      %s value      %S its length, -1 for null    %k key        %K its length
      %h headers    %T timestamp in ms            %t topic      %p partition
      %o offset     %i Snowflake id               %R %S in 4 bytes, big endian
      %% percent    \\n \\t \\r \\0 \\xHH bytes
    """
    topics = tuple(dict.fromkeys(topics))
    null = b"NULL" if nulls else b""
    show = (
        by_json(layout)
        if as_json
        else by_format(format, null)
        if format is not None
        else by_lines(delimiter, key_separator, null, layout if show_ids else None, len(topics) > 1)
    )
    if group is not None:
        if partitions or not isinstance(start, (Earliest, Latest)):
            raise click.UsageError("a --group has its own partitions and offsets: give --from earliest or latest only")
        _consume_as_member(servers, topics, group, start, count, follow, committed, show)
        return
    from broker.security.authorization.acl import Operation
    from flakelog.operations.rights import needed_for_topics

    needed = needed_for_topics(Operation.READ, topics)
    with ends_at_sigterm(), client_of(servers, needed) as client, _ends_at_ctrl_c(follow):
        client.on_poison = _warn
        spans = _spans(client, topics, partitions, start, committed)
        records = _records(
            client, spans, start, follow=follow, committed=committed, of_all_partitions=not partitions
        )
        record = None
        for record in islice(records, count):
            sys.stdout.buffer.write(show(record))
            if follow:
                sys.stdout.buffer.flush()
        if record is None:
            click.echo("no messages there; --follow waits for new ones", err=True)
        if committed:
            name_held_back(client, {(span.topic, span.partition) for span in spans})


def _ends_at_ctrl_c(follow: bool) -> AbstractContextManager[None]:
    """Return a context in which Ctrl-C or SIGTERM is the normal end, if the command follows the log."""
    return suppress(KeyboardInterrupt) if follow else nullcontext()


def _warn(batch: "PoisonBatch") -> None:
    click.echo(f"skipped {batch}", err=True)


def _warn_of_reset(gap: "Gap") -> None:
    (topic, partition), offset, reason = gap
    click.echo(f"{topic}-{partition}: offset {offset}, where the group was, is gone: {reason}", err=True)


def name_held_back(client: "Client", partitions: "Iterable[Partition]") -> None:
    """Name on stderr the partitions whose last messages an open transaction holds back from --committed."""
    from flakelog.operations.partitions import bounds_of_all

    chosen = sorted(partitions)
    # In this order, because the messages that come between two requests are held back by no transaction.
    ends, stable = bounds_of_all(client, chosen), bounds_of_all(client, chosen, committed=True)
    held = [partition for partition in chosen if stable[partition][1] < ends[partition][1]]
    for topic, number in held[:HELD_BACK_MAX]:
        offsets = f"{stable[topic, number][1]} to {ends[topic, number][1] - 1}"
        click.echo(f"{topic}-{number}: an open transaction holds back offsets {offsets}; {_NAMES_IT}", err=True)
    if len(held) > HELD_BACK_MAX:
        click.echo(f"and {len(held) - HELD_BACK_MAX:,} other partitions", err=True)


def _spans(
    client: "Client", topics: tuple[str, ...], partitions: tuple[int, ...], start: OffsetSpec, committed: bool
) -> list[RangeToRead]:
    infos = [client.topic(name) for name in topics]
    for info in infos:
        _check_partitions(info, partitions)
    chosen = [(info.name, number) for info in infos for number in sorted(set(partitions)) or range(info.partitions)]
    if isinstance(start, AtOffset) and len(chosen) > 1:
        partitions_text = count_partitions(infos)
        raise click.UsageError(f"{partitions_text}, each with offsets of its own: name one by --partition")
    if isinstance(start, Last) and start.count > LAST_MAX:
        raise click.UsageError(f"--from -{start.count} is more than {LAST_MAX:,} messages; give --from @TIME, or id:ID")
    return find_starts(client, chosen, start, committed)


def count_partitions(topics: "list[TopicInfo]") -> str:
    """Return which topics have how many partitions, as text."""
    return " and ".join(f"{topic.name} has {topic.partitions} partitions" for topic in topics)


def _check_partitions(topic: "TopicInfo", partitions: tuple[int, ...]) -> None:
    for partition in partitions:
        if partition >= topic.partitions:
            fail(f"{topic.name} has partitions 0 to {topic.partitions - 1}, not {partition}")


def _records(
    client: "Client",
    spans: list[RangeToRead],
    start: OffsetSpec,
    *,
    follow: bool,
    committed: bool,
    of_all_partitions: bool,
) -> "Iterator[Record]":
    """Yield the existing records, merged; with `follow`, poll for new ones forever after, of new partitions too.

    Raise TopicRecreated if a topic that is followed was deleted and made again.
    """
    ids = TopicIds(client, {span.topic for span in spans} if follow else ())
    fetch_bytes = min(max(FETCHED_BYTES // max(len(spans), 1), FETCH_BYTES_MIN), FETCH_BYTES_MAX)
    if isinstance(start, Last):
        kept: list[Record] = []
        for span in spans:
            last = _last(client, span, start.count, committed)
            kept = heapq.nlargest(start.count, chain(kept, last), key=_age_and_offset)
        yield from sorted(kept, key=_age_and_offset)
    else:
        yield from heapq.merge(*(span_records(client, span, committed, fetch_bytes) for span in spans), key=_age)
    positions = {(span.topic, span.partition): max(span.offset, span.end) for span in spans}
    away, away_for_lookups, looked_up = Away(), Away(), time.monotonic()
    while follow:
        if of_all_partitions and time.monotonic() - looked_up > NEW_PARTITIONS_SECONDS:
            with away_for_lookups.noticed():
                positions |= _new_positions(client, positions)
                looked_up = time.monotonic()
        wait_ms = FOLLOW_WAIT_MS // max(len(positions), 1)
        chosen: list[Record] = []
        for (topic, partition), offset in positions.items():
            with away.noticed(), ids.checked(topic):
                records, positions[topic, partition] = client.fetch(
                    topic, partition, offset, max_wait_ms=wait_ms, committed=committed
                )
                chosen += records
        yield from sorted(chosen, key=_age)


def _new_positions(client: "Client", positions: "Mapping[Partition, int]") -> "dict[Partition, int]":
    """Return where the partitions begin that the topics have got since."""
    from flakelog.operations.partitions import bounds_of_all

    topics = {topic for topic, _ in positions}
    partitions = {(topic, number) for topic in topics for number in range(client.topic(topic).partitions)}
    return {partition: begin for partition, (begin, _) in bounds_of_all(client, partitions - set(positions)).items()}


class TopicIds:
    """The ids of topics (KIP-516) at the start of a command that follows them by name."""

    def __init__(self, client: "Client", topics: Iterable[str]) -> None:
        self._client = client
        self._ids = {topic: client.topic(topic).id for topic in topics}
        self._doubted: set[str] = set()

    @contextmanager
    def checked(self, topic: str) -> Iterator[None]:
        """Look at the topic's id after an error of the block, and before the next block. Raise TopicRecreated."""
        from broker.client.errors import BrokerError, Unreachable

        if topic in self._doubted:
            self._check(topic)
        try:
            yield
        except Unreachable:
            self._doubted.add(topic)
            raise
        except BrokerError:
            self._doubted.add(topic)
            self._check(topic)
            raise

    def _check(self, topic: str) -> None:
        from broker.client.errors import TopicRecreated

        topic_id = self._client.topic(topic).id
        if topic_id != self._ids[topic]:
            raise TopicRecreated(topic, topic_id)
        self._doubted.discard(topic)


class Away:
    """The time for which a server is away while a command follows its log; it is named on stderr."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._reported_at = 0.0

    @contextmanager
    def noticed(self) -> Iterator[None]:
        """Bear with a server that is away, as in a restart. Raise its error after --timeout."""
        from broker.client.errors import BrokerError, CommitFailed, Unreachable

        try:
            yield
            self._since = None
        except (BrokerError, CommitFailed, Unreachable) as error:
            now = time.monotonic()
            self._since = now if self._since is None else self._since
            remaining_s = answer_seconds() - (now - self._since)
            if remaining_s <= 0 or (isinstance(error, BrokerError) and not error.retriable):
                raise
            if now - self._reported_at >= SAY_SECONDS:
                self._reported_at = now
                click.echo(f"{error}; trying for {remaining_s:.0f} s", err=True)
            time.sleep(AWAY_PAUSE_SECONDS)


def span_records(
    client: "Client", span: RangeToRead, committed: bool = False, fetch_bytes: int = FETCH_BYTES_MAX
) -> "Iterator[Record]":
    """Return a partition's records up to the end it had at the start; the records of one fetch are in memory."""
    from flakelog.operations.partitions import read_records

    partition = span.topic, span.partition
    return read_records(client, partition, span.offset, span.end, committed=committed, max_bytes=fetch_bytes)


def _last(client: "Client", span: RangeToRead, number: int, committed: bool) -> "list[Record]":
    """Return a partition's last records. Compaction and transactions leave fewer records than offsets, so look on."""
    from flakelog.operations.partitions import bounds_of

    begin = bounds_of(client, span.topic, span.partition)[0]
    back = number
    while True:
        offset = max(begin, span.end - back)
        records = list(span_records(client, span._replace(offset=offset), committed))
        if len(records) >= number or offset == begin:
            return records[-number:]
        back *= 4


def _age(record: "Record") -> int:
    """Return the sort key for merging: the record's id, because ids are k-sorted, or its timestamp if it has no id."""
    return record.timestamp_ms if record.id is None else record.id


def _age_and_offset(record: "Record") -> tuple[int, int]:
    """Return the sort key of the last records: of a partition's records with the same timestamp the later ones."""
    return _age(record), record.offset


# --- as a member of a group ------------------------------------------------------------------------------------------


def _consume_as_member(
    servers: str,
    topics: tuple[str, ...],
    group: str,
    start: OffsetSpec,
    count: int | None,
    follow: bool,
    committed: bool,
    show: Formatter,
) -> None:
    from broker.client.consumer import Consumer
    from broker.client.consumer_config import ConsumerConfig
    from broker.client.core import LATEST
    from broker.client.fetch_config import READ_COMMITTED, READ_UNCOMMITTED
    from broker.security.authorization.acl import Operation, ResourceType
    from flakelog.operations.rights import Right, needed_for_topics

    needed = [*needed_for_topics(Operation.READ, topics), Right(Operation.READ, ResourceType.GROUP, group)]
    with client_of(servers, needed) as client:
        partitions = [(name, number) for name in topics for number in range(client.topic(name).partitions)]
        ends = {} if follow else client.run(client.core.list_offsets(partitions, LATEST))
        level = READ_COMMITTED if committed else READ_UNCOMMITTED
        config = ConsumerConfig(auto_commit_interval_ms=None, isolation_level=level)
        security = client.core.security
        made = Consumer(
            servers,
            topics,
            group=group,
            start=start,
            on_poison=_warn,
            on_reset=_warn_of_reset,
            config=config,
            security=security,
        )
        came = 0
        with ends_at_sigterm(), closing(made) as consumer, _ends_at_ctrl_c(follow), _denial_of(group):
            for records in _polled(client, consumer, group, topics, None if follow else ends, count):
                sys.stdout.buffer.write(b"".join(map(show, records)))
                sys.stdout.buffer.flush()  # before the commit, so that records that were not printed come again
                came += len(records)
        if not follow:
            print_line(f"{count_of(came, 'message')} for group {group}", err=True)
            if committed:
                name_held_back(client, partitions)


@contextmanager
def _denial_of(group: str) -> Iterator[None]:
    """Raise BrokerError in place of GroupRefused where the user may not read the group."""
    from broker.client.errors import BrokerError, GroupRefused
    from broker.wire.errors import ErrorCode

    try:
        yield
    except GroupRefused as error:
        denied = ErrorCode.GROUP_AUTHORIZATION_FAILED
        if denied.name not in str(error):
            raise
        raise BrokerError(denied, f"group {group}") from error


def _polled(
    client: "Client",
    consumer: "Consumer",
    group: str,
    topics: Sequence[str],
    ends: dict[tuple[str, int], int | None] | None,
    count: int | None,
    records_max: int = GROUP_POLL_RECORDS,
) -> "Iterator[list[Record]]":
    """Yield records as they come, and commit them when the next are asked for, because then they are printed.

    Stop at the `ends`, or after `count` records. A list has at most `records_max`. A deleted topic is missed for
    --timeout, and then an error.
    """
    patience, remaining = Patience(), count
    figures = consumer.figures()
    patience.begin(lambda: _awaited(group, figures))
    begun = last = committed = time.monotonic()
    looked_up, away = begun, Away()
    end = None if ends is None else GroupEnd(ends)
    printed: dict[Partition, int] = {}
    """Next offsets after the printed records, if not committed yet. The consumer's own positions may be higher."""
    try:
        while remaining is None or remaining > 0:
            records = consumer.poll(GROUP_POLL_MS, records_max if remaining is None else min(remaining, records_max))
            now = time.monotonic()
            figures = consumer.figures()
            assigned = figures.partitions
            if records or (assigned and not missing(assigned)):
                patience.end()
            elif not assigned and not patience.is_begun:  # the group has taken them away, and forms anew
                patience.begin(lambda: _awaited(group, figures))
            if records:
                yield records
                remaining = None if remaining is None else remaining - len(records)
                last, printed = now, consumer.uncommitted
                if end is not None:
                    end.came(int(now * 1000))
            elif end is not None and end.is_reached(assigned, int(now * 1000)):
                return
            elif end is not None and end.missing_ms(int(now * 1000)) > answer_seconds() * 1000:
                fail(_nothing_came(group, figures))
            elif now - max(last, looked_up) > SAY_SECONDS:  # the consumer itself tries on without a word
                with away.noticed():
                    for topic in topics:
                        client.topic(topic)
                    looked_up = now
            if printed and now - committed > COMMIT_SECONDS:
                with away.noticed():
                    consumer.commit()
                    committed, printed = now, {}
    finally:
        patience.close()
        if printed:
            consumer.commit({key: offset for key, offset in printed.items() if key in consumer.assignment})


def _awaited(group: str, figures: "ConsumerFigures") -> str:
    """Return what a member waits for."""
    behind = missing(figures.partitions)
    if behind:
        return f"messages of {behind[0][0]}-{behind[0][1]}"
    if figures.group_wait_ms:
        return f"group {group}, whose other members have not joined"
    return f"partitions of group {group}"


def _nothing_came(group: str, figures: "ConsumerFigures") -> str:
    """Return why a member that is not at the end gives up."""
    behind = [f"{topic}-{partition}" for topic, partition in missing(figures.partitions)]
    if not behind and figures.group_wait_ms:
        return f"group {group} gave no partition; other members have not joined within {answer_seconds():g} s"
    if not behind:
        reasons = "its other members have them, or its coordinator lets no member in"
        return f"group {group} gave no partition: {reasons}. `flakelog group describe {group}` lists its members"
    return f"nothing came of {listed(behind, 1)} within {answer_seconds():g} s, though its end is not reached"
