"""Let a server of ours copy batches without ids, and send ids to all followers. This is a test bench, and no setting.

Python imports this module at its start where PYTHONPATH has its directory. The server's followers number batches of a
leader of Kafka on from the last id of the log. So two followers of the same leader have the same ids. Followers of
Kafka get the ids in a tagged field that they did not ask for.
"""

from broker.log import copied_appender
from broker.log.copied_appender import IdEntry
from broker.wire.fetch import FetchRequest

checked_ids = copied_appender._checked_ids
asks_for_ids = FetchRequest.wants_ids


def checked_or_made_ids(log, ids, spans):
    """Return the ids of a fetch answer as the product does, or made ones if it has none."""
    if ids is not None:
        return checked_ids(log, ids, spans)
    entries, first_id = [], max(log.last_id, 0) + 1
    for start, end in spans:
        entries.append(IdEntry(start, end - start, first_id))
        first_id += end - start
    return entries


copied_appender._checked_ids = checked_or_made_ids
FetchRequest.wants_ids = property(lambda request: request.replica_id >= 0 or asks_for_ids.__get__(request))
