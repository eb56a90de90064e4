"""The things that the deletion of a topic concerns: its messages, and the consumer groups that read it."""

from collections.abc import Sequence

from broker.services.context import BrokerServices
from flakelog.console import groups, text, topics
from flakelog.console.visit import Fields

GROUPS_SHOWN = 200


def details(services: BrokerServices, fields: Fields) -> Sequence[Sequence[str]]:
    """Return a plan's rows: the topic's messages, its bytes, and one row for each group."""
    name = fields.text("topic").strip()
    topic = topics.topic_page(services, name)
    if topic is None:  # it was deleted while the plan was made
        return ()
    readers = groups.readers(services, name)
    rows = [["Messages", text.number(topic.messages)], ["Size", text.size(topic.bytes)]]
    rows += [[f"Group {group.group_id}", _state(group)] for group in readers[:GROUPS_SHOWN]]
    if len(readers) > GROUPS_SHOWN:
        rows.append([f"and {len(readers) - GROUPS_SHOWN:,} more groups", ""])
    if not readers:
        rows.append(["Groups", "none has committed an offset or reads it"])
    return rows


def _state(group: groups.Reader) -> str:
    members = "1 member reads it now" if group.members == 1 else f"{group.members:,} members read it now"
    if not group.has_committed:
        return members
    return f"has committed offsets; {members}" if group.members else "has committed offsets"
