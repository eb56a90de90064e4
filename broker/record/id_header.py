"""The record header `flakelog-id`: the Snowflake id of a record, as decimal text, for brokers that keep no ids.

A broker of Flakelog keeps the ids itself, and adds the header only if a topic asks for it (`flakelog.id.header`). For
Apache Kafka a producer can add it (`Producer(ids="header")`). Readers take the id from it if the broker sends none.
"""

from broker.record.records import Headers

ID_HEADER = "flakelog-id"
_DIGITS_MAX = 19  # of the largest id, which has 63 bits
_ID_MAX = (1 << 63) - 1


def id_header(id: int) -> tuple[str, bytes]:
    """Return the header of an id."""
    return ID_HEADER, b"%d" % id


def id_of(headers: Headers) -> int | None:
    """Return the id in the last header of the name; None without one, or if it is no decimal number of 63 bits."""
    for name, value in reversed(headers):
        if name == ID_HEADER:
            if value is None or not value.isdigit() or len(value) > _DIGITS_MAX:
                return None
            id = int(value)
            return id if id <= _ID_MAX else None
    return None
