"""The base class of all errors that Flakelog raises, which `flakelog.errors` names, and how they quote a wrong value.

It is in the lowest package, and imports none of ours, so that every other package can import it.
"""

from typing import Any

QUOTED_CHARACTERS = 60


class FlakelogError(Exception):
    """The base class of all errors that Flakelog raises; the message can be shown to a user.

    An error can be pickled, whatever arguments its class takes, so that a pool of processes can pass it on.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.args), self.__dict__


def _restored(cls: type[FlakelogError], args: tuple[object, ...]) -> FlakelogError:
    """Return a pickled error without a call of its class, which makes `args` of other arguments."""
    error = cls.__new__(cls)
    error.args = args
    return error


def quoted(value: object) -> str:
    """Return a wrong value as errors quote it: the beginning of a long one."""
    text = str(value)
    return repr(text) if len(text) <= QUOTED_CHARACTERS else f"{text[:QUOTED_CHARACTERS]!r}..."
