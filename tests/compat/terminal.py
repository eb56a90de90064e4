"""A program at a terminal, as a person meets it."""

import os
import pty
import re
import select
import time

from tests.patience import SECONDS


class Terminal:
    """Runs a command at a terminal of its own."""

    def __init__(self, command, environment):
        self._pid, self._end = pty.fork()
        if not self._pid:
            os.execvpe(command[0], command, environment)
        self._seen = ""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self._end)
        os.waitpid(self._pid, 0)

    def type(self, text):
        self._seen = ""
        os.write(self._end, text.encode())

    def until(self, wanted):
        """Read what the program shows until it has the wanted text; return all since the last typing."""
        deadline = time.monotonic() + SECONDS
        while wanted not in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r|\x08 ?", "", self._seen):
            remaining_s = deadline - time.monotonic()
            assert remaining_s > 0 and select.select([self._end], [], [], remaining_s)[0], repr(self._seen)
            self._seen += os.read(self._end, 65536).decode(errors="replace")
        return self._seen
