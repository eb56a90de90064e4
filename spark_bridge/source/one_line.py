"""The errors of format "flakelog" as Spark shows them: one line with the reason, and then the traceback.

Spark prints a worker's traceback, and the reason is its last line, after thirty lines of frames. Python prints the
cause of an exception before it, without frames if the cause was never raised. So each error gets its own reason as its
cause. In tasks Spark sets the cause to None first; the property keeps it.
"""

from collections.abc import Iterator
from contextlib import contextmanager

OWN = ("spark_bridge.", "broker.")
_Line = type("flakelog", (Exception,), {"__module__": "builtins"})  # Python prints it as "flakelog: reason"


class SparkError(Exception):
    """An error that Spark prints as one line before the traceback."""

    @property
    def __cause__(self) -> BaseException:
        line: BaseException = _Line(str(self))
        return line

    @__cause__.setter
    def __cause__(self, cause: BaseException | None) -> None:
        """Ignore another cause."""


def reason_of(error: BaseException) -> str:
    """Return the reason in one line. The reason of an error that is not Flakelog's begins with its type."""
    text = " ".join(str(error).split())
    return text if type(error).__module__.startswith(OWN) else f"{type(error).__name__}: {text}"


@contextmanager
def one_line() -> Iterator[None]:
    """Raise each error as SparkError, with the traceback of the original."""
    try:
        yield
    except SparkError:
        raise
    except Exception as error:
        raise SparkError(reason_of(error)).with_traceback(error.__traceback__) from None
