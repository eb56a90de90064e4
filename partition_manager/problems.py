"""The requests of one partition that fail at the moment. The success of a request ends its problem, and no other does.

A partition may fetch well while its progress cannot be stored. It may also store well while it cannot fetch.
"""

from collections.abc import Hashable

from partition_manager.ports import Bury, Request


class Problems:
    """The latest error of each failing request of one partition."""

    def __init__(self) -> None:
        self._errors: dict[Hashable, str] = {}

    @property
    def text(self) -> str:
        """Return the errors, each once, the one that began first at the front; "" if nothing fails."""
        return "; ".join(dict.fromkeys(self._errors.values())) if self._errors else ""

    def failed(self, request: Request, error: str) -> None:
        """Note that a request failed; it is sent again."""
        self._errors[_key_of(request)] = error

    def succeeded(self, request: Request) -> None:
        """Forget the error of a request that had failed."""
        self._errors.pop(_key_of(request), None)

    def clear(self) -> None:
        """Forget all errors, because the partition's requests are dropped."""
        self._errors.clear()


def _key_of(request: Request) -> Hashable:
    """A partition has one request of each kind at a time, but one for each dead letter."""
    return type(request), request.letter.record.offset if isinstance(request, Bury) else None
