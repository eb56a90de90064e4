"""The base class of all errors that Flakelog raises, which `flakelog.errors` names, and how they quote a wrong value.

It is in the lowest package, and imports nothing, so that every other package can import it.
"""

QUOTED_CHARACTERS = 60


class FlakelogError(Exception):
    """The base class of all errors that Flakelog raises; the message can be shown to a user."""


def quoted(value: object) -> str:
    """Return a wrong value as errors quote it: the beginning of a long one."""
    text = str(value)
    return repr(text) if len(text) <= QUOTED_CHARACTERS else f"{text[:QUOTED_CHARACTERS]!r}..."
