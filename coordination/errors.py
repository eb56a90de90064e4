"""The base class of all errors that Flakelog raises; `flakelog.errors` names them.

It is in the lowest package, and imports nothing, so that every other package can import it.
"""


class FlakelogError(Exception):
    """The base class of all errors that Flakelog raises; the message can be shown to a user."""
