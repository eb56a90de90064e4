"""The requests that fail at the moment: one line for the log when an error begins, and one when it has ended.

If a broker is down, the requests of all its partitions fail with one error. The log names the first of them only.
"""

from partition_manager.notes import Notes

REMINDER_FIRST = 12  # with the default pauses (doubled from 250 ms to 10 s) the twelfth failure comes after a minute
REMINDER_EVERY = 6  # and six more take another one

Key = tuple[str, str]  # the topic or partition, and the kind of request


class FailingRequests:
    """Requests by the error with which they began to fail."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._errors: dict[Key, str] = {}
        self._counts: dict[str, int] = {}  # requests that fail with each error

    def __len__(self) -> int:
        return len(self._errors)

    def failed(self, key: Key, error: str, failures: int = 1) -> None:
        """Process a failure, which is the request's `failures`-th in a row.

        Only the first counts, because retries may name other errors. The log is reminded later by one request for each
        error, with what that request meets now.
        """
        if key in self._errors:
            if failures >= REMINDER_FIRST and failures % REMINDER_EVERY == 0 and self._speaks(key):
                self._notes.warn(f"{' '.join(key)} still fails: {error}; it is asked again")
            return
        self._errors[key] = error
        count = self._counts[error] = self._counts.get(error, 0) + 1
        if count == 1:
            self._notes.warn(f"{' '.join(key)} failed: {error}; it is asked again")

    def _speaks(self, key: Key) -> bool:
        """Return True for the request that has failed longest with this error; O(failing requests)."""
        error = self._errors[key]
        return next(request for request, met in self._errors.items() if met == error) == key

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
