"""Asynchronous and blocking bolts in the test driver, without threads."""

from collections.abc import Callable

from spout.background import TwistedBackground
from spout.work import Done


class InlineBackground(TwistedBackground):
    """A background that makes the calls of threads at once. Its coroutines go on where a Deferred fires."""

    def run_in_thread(self, pool: str, threads: int, call: Callable[[], object], done: Done) -> None:
        """Make the call now."""
        error: BaseException | None = None
        try:
            call()
        except Exception as raised:
            error = raised
        done(error)
