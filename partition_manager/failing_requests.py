"""The requests that fail at the moment: one line for the log when an error begins, and one when it has ended.

If a broker is down, the requests of all its partitions fail with one error. The log names the first of them only.
"""

from partition_manager.notes import Notes

Key = tuple[str, str]  # the topic or partition, and the kind of request


class FailingRequests:
    """Requests by the error with which they began to fail."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._errors: dict[Key, str] = {}
        self._counts: dict[str, int] = {}  # requests that fail with each error

    def __len__(self) -> int:
        return len(self._errors)

    def failed(self, key: Key, error: str) -> None:
        """Process a failure. Only the first of a request counts, because its retries may name other errors."""
        if key in self._errors:
            return
        self._errors[key] = error
        count = self._counts[error] = self._counts.get(error, 0) + 1
        if count == 1:
            self._notes.warn(f"{' '.join(key)} failed: {error}; it is asked again")

    def succeeded(self, key: Key) -> None:
        """Process the answer to a request that had failed."""
        error = self._drop(key)
        if error is not None and error not in self._counts:
            self._notes.info(f"{' '.join(key)} works again, after: {error}")

    def forget(self, name: str) -> None:
        """Forget the requests of a partition that is released; O(failing requests)."""
        for key in [key for key in self._errors if key[0] == name]:
            self._drop(key)

    def _drop(self, key: Key) -> str | None:
        error = self._errors.pop(key, None)
        if error is not None:
            self._counts[error] -= 1
            if not self._counts[error]:
                del self._counts[error]
        return error
