"""Actions: what a visitor asks for, what it will do, and how it is done by the broker's own requests.

An action is asked for twice. `plan` says what it will do, and changes nothing: the broker checks it (`validate_only`)
where Kafka's protocol can. After the visitor has confirmed that, `carry_out` does it. Both run in a thread, with a
client of the broker's listener.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import quote

from broker.client.blocking import Client
from broker.client.core import Partition
from broker.client.offset_spec import KINDS, AtTime, Earliest, Latest, OffsetSpec, parse_value
from broker.services.context import BrokerServices
from coordination.errors import quoted
from flakelog.console import text
from flakelog.console.access import Access
from flakelog.console.draft import Draft, draft_of
from flakelog.console.groups import Reader
from flakelog.console.groups import readers as readers_of
from flakelog.console.topics import topic_page
from flakelog.console.visit import FIELD_CHARACTERS_MAX, BadField, Fields
from flakelog.operations import configs, group_reset, letters, mirrors, topics
from flakelog.operations.handled_letters import HandledLetters
from flakelog.operations.partitions import is_internal
from flakelog.produce import partition_of, send
from flakelog.visible_text import count_of

PARTITIONS_SHOWN = 200  # of a group's offsets in a plan
LETTERS_MAX = 100
READERS_SHOWN = 200  # groups in the plan of a deletion
OFFSETS = "offsets"
"""The field of a confirmed reset that has the offsets of its plan. The log may have grown meanwhile."""
PLANNED_OFFSETS = re.compile(r"[^*]+(\*\d{1,9}-\d{1,19})+", re.ASCII)
DELETING = ("cleanup.policy", "retention.bytes", "retention.ms")  # settings by which a log deletes messages


class Planned(NamedTuple):
    """The effect of an action: a sentence, a table of details, warnings, and the word on its button.

    `seen` are fields that the confirmation brings back, so that the action is done to what the visitor saw.
    """

    sentence: str
    button: str
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    warning: str = ""
    seen: Mapping[str, str] = {}


class Task(NamedTuple):
    """A confirmed action: `log` takes a line for the server's log, and `now_ms` is the time of the confirmation."""

    log: Callable[[str], None]
    now_ms: int


class Done(NamedTuple):
    """The outcome of an action, and the page that shows it."""

    sentence: str
    target: str


class Action(NamedTuple):
    """An action: its title, the names of its fields, and its two steps. `form` is the template that asks for fields.

    `details` are rows that the plan shows beside its own; the broker's thread looks them up. The log does not tell what
    the `unlogged` fields have. `secrets` are fields and labels of passwords, which the confirmation asks for: no page
    shows them or brings them back, and no log tells them.
    """

    title: str
    fields: Sequence[str]
    plan: Callable[[Client, Fields], Planned]
    carry_out: Callable[[Client, Fields, Task], Done]
    form: str = ""
    details: Callable[[BrokerServices, Access, Fields], Sequence[Sequence[str]]] | None = None
    unlogged: Sequence[str] = ()
    secrets: Sequence[tuple[str, str]] = ()


# --- topics ----------------------------------------------------------------------------------------------------------


def _plan_topic(client: Client, fields: Fields) -> Planned:
    name, partitions, factor, settings = _new_topic(fields)
    topics.create_topic(client, name, partitions, settings, replication_factor=factor, validate_only=True)
    is_default = partitions == topics.BROKER_DEFAULT
    number = "the broker's default number of partitions" if is_default else count_of(partitions, "partition")
    copies = "" if factor == topics.BROKER_DEFAULT else f", replication factor {factor}"
    sentence = f"Create the topic {name} with {number}{copies}."
    return Planned(sentence, "Create it", ("Setting", "Value"), [list(setting) for setting in settings.items()])


def _create_topic(client: Client, fields: Fields, task: Task) -> Done:
    name, partitions, factor, settings = _new_topic(fields)
    topics.create_topic(client, name, partitions, settings, replication_factor=factor)
    return Done(f"The topic {name} was created.", f"/console/topics/{name}")


def _new_topic(fields: Fields) -> tuple[str, int, int, dict[str, str]]:
    """Return the name, the numbers of partitions and of copies, and the settings. Raise BadField."""
    name = fields.text("name").strip()
    if not name:
        raise BadField("a topic has a name of letters, digits, '.', '_' and '-'")
    partitions = fields.number("partitions", topics.BROKER_DEFAULT)
    if partitions == 0 or partitions > 1 << 30:
        raise BadField("a topic has at least one partition")
    factor = fields.number("replication_factor", topics.BROKER_DEFAULT)
    if factor == 0 or factor >= 1 << 15:
        raise BadField("a partition has at least one copy, and at most one on each broker")
    return name, partitions, factor, _settings(fields.text("settings"))


def _settings(text: str) -> dict[str, str]:
    """Parse lines of NAME=VALUE. Raise BadField."""
    properties = {}
    for line in filter(None, (line.strip() for line in text.splitlines())):
        name, sign, value = line.partition("=")
        if not sign or not name.strip():
            raise BadField(f"{quoted(line)} is no setting; give NAME=VALUE, one a line")
        properties[name.strip()] = value.strip()
    return properties


def _plan_partitions(client: Client, fields: Fields) -> Planned:
    name, partitions = _topic(fields), _partitions(fields)
    has = client.topic(name).partitions
    if partitions <= has:
        raise BadField(f"{name} has {has} partitions; give a larger number, as a topic never gets fewer")
    topics.add_partitions(client, name, partitions, validate_only=True)
    warning = "Messages stay where they are, but keys may map to other partitions afterwards. This cannot be undone."
    return Planned(f"Give {name} {count_of(partitions, 'partition')}; it has {has}.", "Add them", warning=warning)


def _add_partitions(client: Client, fields: Fields, task: Task) -> Done:
    name, partitions = _topic(fields), _partitions(fields)
    topics.add_partitions(client, name, partitions)
    return Done(f"{name} has {count_of(partitions, 'partition')} now.", f"/console/topics/{name}")


def _partitions(fields: Fields) -> int:
    partitions = fields.number("partitions")
    if not 0 < partitions < 1 << 30:
        raise BadField("give the number of partitions that there are to be in all")
    return partitions


def _plan_alteration(client: Client, fields: Fields) -> Planned:
    name = _topic(fields)
    (setting, value), = _alteration(fields).items()
    resource = configs.topic_resource(name)
    current = {value.name: value for value in configs.describe_configs(client, resource)}
    if setting not in current:
        raise BadField(f"topics have no setting {setting!r}; the topic's page lists them")
    before = current[setting].value
    configs.alter_configs(client, resource, {setting: value}, validate_only=True)
    rows = [[setting, "–" if before is None else before, "its default" if value is None else value]]
    sentence = f"Restore {setting} of {name}." if value is None else f"Set {setting} of {name}."
    warning = "The log deletes messages by this setting, and that cannot be undone." if setting in DELETING else ""
    return Planned(sentence, "Alter it", ("Setting", "Now", "Then"), rows, warning)


def _alter(client: Client, fields: Fields, task: Task) -> Done:
    name, values = _topic(fields), _alteration(fields)
    configs.alter_configs(client, configs.topic_resource(name), values)
    return Done(f"{', '.join(values)} of {name} was altered.", f"/console/topics/{name}")


def _alteration(fields: Fields) -> dict[str, str | None]:
    setting = fields.text("setting").strip()
    if not setting:
        raise BadField("name the setting to alter")
    return {setting: None if fields.text("restore") else fields.text("value").strip()}


def _plan_deletion(client: Client, fields: Fields) -> Planned:
    topic = client.topic(_deleted(fields))
    sentence = f"Delete the topic {topic.name} with {count_of(topic.partitions, 'partition')} and all its messages."
    warning = "This cannot be undone. The offsets that groups have committed for it are deleted too."
    return Planned(sentence, "Delete it", ("Concerned", "Now"), warning=warning, seen={"id": str(topic.id)})


def _delete(client: Client, fields: Fields, task: Task) -> Done:
    name = _deleted(fields)
    topics.delete_topic(client, name, id=fields.text("id"))
    return Done(f"The topic {name} was deleted.", "/console/topics")


def _deletion_details(services: BrokerServices, access: Access, fields: Fields) -> Sequence[Sequence[str]]:
    """Return a plan's rows: the topic's messages, its bytes, and one row for each group that may be seen."""
    name = fields.text("topic").strip()
    topic = topic_page(services, access, name)
    if topic is None:  # it was deleted while the plan was made
        return ()
    readers = readers_of(services, access, name)
    rows = [["Messages", text.number(topic.messages)], ["Size", text.size(topic.bytes)]]
    rows += [[f"Group {group.group_id}", _readers_state(group)] for group in readers[:READERS_SHOWN]]
    if len(readers) > READERS_SHOWN:
        rows.append([f"and {len(readers) - READERS_SHOWN:,} more groups", ""])
    if not readers:
        rows.append(["Groups", "none has committed an offset or reads it"])
    return rows


def _readers_state(group: Reader) -> str:
    members = "1 member reads it now" if group.members == 1 else f"{group.members:,} members read it now"
    if not group.has_committed:
        return members
    return f"has committed offsets; {members}" if group.members else "has committed offsets"


def _deleted(fields: Fields) -> str:
    """Return the topic to delete, whose name was typed. Raise BadField."""
    name = _topic(fields)
    if is_internal(name):
        raise BadField(f"{name} is a topic that Flakelog itself needs; the console deletes none that begin with __")
    if fields.text("typed").strip() != name:
        raise BadField(f"type the topic's name, {name}, to delete it")
    return name


def _topic(fields: Fields) -> str:
    name = fields.text("topic").strip()
    if not name:
        raise BadField("name the topic")
    return name


# --- messages --------------------------------------------------------------------------------------------------------


def _plan_message(client: Client, fields: Fields) -> Planned:
    draft, partitions = _draft(client, fields)
    if draft.partition is not None:
        where = f"{draft.partition}"
    else:
        where = f"{partition_of(draft.key, partitions)}, by its key" if draft.key else "any one, because it has no key"
    is_idle = draft.value is None and draft.key is None
    warning = "Without a key, a tombstone deletes nothing." if is_idle else ""
    rows = [["Partition", where], *draft.rows()]
    return Planned(f"Send a message to {draft.topic}.", "Send it", ("Part", "What is sent"), rows, warning)


def _send_message(client: Client, fields: Fields, task: Task) -> Done:
    draft, partitions = _draft(client, fields)
    partition = partition_of(draft.key, partitions) if draft.partition is None else draft.partition
    (sent,) = send(client, draft.topic, partition, [(draft.key, draft.value)], task.now_ms, draft.headers)
    position = f"{draft.topic}-{sent.partition}, offset {sent.offset}"
    task.log(f"sent a message to {position}")
    id = "" if sent.id is None else f"; its id is {sent.id}"
    target = f"/console/topics/{draft.topic}/message?partition={sent.partition}&offset={sent.offset}"
    return Done(f"The message was sent to {position}{id}.", target)


def _draft(client: Client, fields: Fields) -> tuple[Draft, int]:
    """Return the message that the fields describe, and its topic's number of partitions. Raise BadField."""
    topic = _topic(fields)
    if is_internal(topic):
        raise BadField(f"{topic} is a topic that Flakelog itself writes; the console sends to none that begin with __")
    draft = draft_of(topic, fields)
    partitions = client.topic(topic).partitions
    if draft.partition is not None and draft.partition >= partitions:
        raise BadField(f"{topic} has partitions 0 to {partitions - 1}, not {draft.partition}")
    return draft, partitions


# --- groups ----------------------------------------------------------------------------------------------------------


def _plan_reset(client: Client, fields: Fields) -> Planned:
    reset = _reset(client, fields)
    at_end = set(reset.at_end)
    rows = [
        [
            f"{partition[0]}-{partition[1]}",
            str(reset.before.get(partition, "–")),
            str(offset),
            "no message is so new; this is the end" if partition in at_end else "",
        ]
        for partition, offset in reset.after.items()
    ]
    rows.sort(key=lambda row: not row[-1])
    group = reset.group
    sentence = f"Move the group {group.group_id} to {_name_of(_spec(fields))} in {count_of(len(rows), 'partition')}."
    warning = "Its consumers begin there when they start; they read messages again, or skip some."
    if at_end:
        warning += f" {_at_end(len(at_end))}"
    if group.members:
        warning += f" It is {group.state} with {count_of(len(group.members), 'member')}; stop them before you confirm."
    confirmed = _text_of(reset.after)
    more = len(rows) - PARTITIONS_SHOWN
    if more > 0:
        rows = [*rows[:PARTITIONS_SHOWN], [f"and {more:,} more", "", "", ""]]
    if not at_end:
        rows = [row[:-1] for row in rows]
    head = ("Partition", "Now", "Then", "Why there") if at_end else ("Partition", "Now", "Then")
    return Planned(sentence, "Reset its offsets", head, rows, warning, seen={OFFSETS: confirmed})


def _text_of(offsets: Mapping[Partition, int]) -> str:
    """Return the offsets of a plan as a field of its confirmation: "orders*0-5*1-7 trips*0-2". Raise BadField.

    A form sends these characters as they are, and a topic's name has no asterisk.
    """
    topics: dict[str, str] = {}
    for (topic, number), offset in offsets.items():
        topics[topic] = f"{topics.get(topic, topic)}*{number}-{offset}"
    confirmed = " ".join(topics.values())
    if len(confirmed) > FIELD_CHARACTERS_MAX:
        partitions = count_of(len(offsets), "partition")
        instead = "name a topic, or use `flakelog group reset-offsets`"
        raise BadField(f"the offsets of {partitions} are more than a form holds; {instead}")
    return confirmed


def _offsets_of(confirmed: str) -> dict[Partition, int]:
    """Return the offsets of a plan that the visitor has confirmed. Raise BadField."""
    offsets: dict[Partition, int] = {}
    for of_topic in confirmed.split(" "):
        if not PLANNED_OFFSETS.fullmatch(of_topic):
            raise BadField(f"these are no offsets of a plan; begin again: {quoted(of_topic)}")
        topic, *entries = of_topic.split("*")
        for entry in entries:
            number, _, offset = entry.partition("-")
            offsets[topic, int(number)] = int(offset)
    return offsets


def _name_of(spec: OffsetSpec) -> str:
    match spec:
        case Earliest():
            return "the oldest messages"
        case Latest():
            return "the end"
        case AtTime(int(timestamp_ms)):
            return text.time(timestamp_ms)
    return "another place"


def _at_end(partitions: int) -> str:
    return f"In {count_of(partitions, 'partition')}, all messages are older, so the offset is the end."


def _reset_offsets(client: Client, fields: Fields, task: Task) -> Done:
    if confirmed := fields.text(OFFSETS):
        reset = group_reset.plan_offsets(client, fields.text("group"), _offsets_of(confirmed))
    else:  # a program that confirms what it has not planned
        reset = _reset(client, fields)
    group_reset.carry_out(client, reset)
    group = reset.group.group_id
    sentence = f"The offsets of {group} were reset in {count_of(len(reset.after), 'partition')}."
    if reset.at_end:
        sentence += f" {_at_end(len(reset.at_end))}"
    return Done(sentence, "/console/group?group=" + quote(group, safe=''))


def _reset(client: Client, fields: Fields) -> group_reset.GroupReset:
    topic = fields.text("topic").strip()
    return group_reset.plan_reset(client, fields.text("group"), _spec(fields), [topic] if topic else ())


def _spec(fields: Fields) -> OffsetSpec:
    """Return the position to move to. Raise BadField."""
    kind, value = fields.text("to", "earliest"), fields.text("value")
    if kind not in KINDS:
        raise BadField(f"a group is moved to {', '.join(KINDS)}, not to {quoted(kind)}")
    try:
        return parse_value(kind, value if kind == "time" else value.strip().replace(",", ""))
    except ValueError as error:
        raise BadField(str(error)) from None


# --- dead letters ----------------------------------------------------------------------------------------------------


def _plan_letters(client: Client, fields: Fields) -> Planned:
    topic, names = _chosen(fields)
    chosen = letters.choose(client, topic, HandledLetters(client, topic), names)
    rows = [
        [letter.place, f"{letter.source}-{letter.source_partition}", str(letter.source_offset)] for letter in chosen
    ]
    number = count_of(len(rows), "message")
    sentence = f"Send {number} of {topic} to {count_of(len({letter.source for letter in chosen}), 'topic')} again."
    return Planned(sentence, "Send again", ("Letter", "To", "Was at offset"), rows)


def _send_letters(client: Client, fields: Fields, task: Task) -> Done:
    topic, names = _chosen(fields)

    def report(sent: letters.Sent) -> None:
        task.log(f"sent {sent.names} of {topic} to {sent.topic}-{sent.partition} from {sent.offset} on")

    marks = HandledLetters(client, topic)
    chosen = letters.choose(client, topic, marks, names)
    letters.send(client, chosen, marks, report)
    number = count_of(len(chosen), "message")
    return Done(f"{number} of {topic} sent again.", f"/console/letters/{quote(topic, safe='')}")


def _chosen(fields: Fields) -> tuple[str, list[str]]:
    topic, names = fields.text("letters"), list(dict.fromkeys(fields.every("place")))
    if not topic or not names:
        raise BadField("choose the letters to send again")
    if len(names) > LETTERS_MAX:
        raise BadField(f"choose at most {LETTERS_MAX} letters; `flakelog spout dead send` sends all")
    return topic, names


# --- mirrors ---------------------------------------------------------------------------------------------------------


def _plan_pause(client: Client, fields: Fields) -> Planned:
    name = _mirror(fields)
    mirrors.check(client, name, mirrors.PAUSED)
    return Planned(f"Let the mirror {name} copy nothing more until it is resumed.", "Pause it")


def _pause(client: Client, fields: Fields, task: Task) -> Done:
    name = _mirror(fields)
    mirrors.set_state(client, name, mirrors.PAUSED, task.now_ms)
    return Done(f"The mirror {name} was paused. Its processes pause within two seconds.", "/console/mirrors")


def _plan_resumption(client: Client, fields: Fields) -> Planned:
    name = _mirror(fields)
    mirrors.check(client, name, mirrors.RUNNING)
    return Planned(f"Let the mirror {name} go on where it was paused.", "Resume it")


def _resume(client: Client, fields: Fields, task: Task) -> Done:
    name = _mirror(fields)
    mirrors.set_state(client, name, mirrors.RUNNING, task.now_ms)
    return Done(f"The mirror {name} was resumed. Its processes go on within two seconds.", "/console/mirrors")


def _mirror(fields: Fields) -> str:
    name = fields.text("mirror")
    if not name:
        raise BadField("name the mirror")
    return name


ACTIONS = {
    "create-topic": Action(
        "Create a topic",
        ("name", "partitions", "replication_factor", "settings"),
        _plan_topic,
        _create_topic,
        "create_topic.html",
    ),
    "add-partitions": Action(
        "Add partitions", ("topic", "partitions"), _plan_partitions, _add_partitions, "add_partitions.html"
    ),
    "alter-setting": Action(
        "Alter a setting", ("topic", "setting", "value", "restore"), _plan_alteration, _alter, "alter_setting.html"
    ),
    "delete-topic": Action(
        "Delete a topic", ("topic", "typed", "id"), _plan_deletion, _delete, "delete_topic.html", _deletion_details
    ),
    "send-message": Action(
        "Send a message",
        ("topic", "partition", "key", "value", "tombstone", "headers"),
        _plan_message,
        _send_message,
        "send_message.html",
        unlogged=("value", "headers"),
    ),
    "reset-offsets": Action(
        "Reset offsets", ("group", "topic", "to", "value"), _plan_reset, _reset_offsets, "reset_offsets.html"
    ),
    "pause-mirror": Action("Pause a mirror", ("mirror",), _plan_pause, _pause),
    "resume-mirror": Action("Resume a mirror", ("mirror",), _plan_resumption, _resume),
    "send-again": Action("Send dead letters again", ("letters", "place"), _plan_letters, _send_letters),
}
