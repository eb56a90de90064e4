"""A process with a stock client of another language, which takes calls as lines of JSON and serves many tests.

    {"do": "produce", "topic": "t", ...}  is answered by  {"result": ...}  or  {"error": name, "message": ...}
"""

import json
import queue
import subprocess
import threading

from tests.patience import SECONDS


class ClientError(Exception):
    """The client threw; `name` is the exception's class, without its package."""

    def __init__(self, name, message):
        super().__init__(f"{name}: {message}")
        self.name = name


class StockProcess:
    """A process started from `argv`, which runs until the `with` block ends."""

    def __init__(self, argv):
        self._argv = argv

    def __enter__(self):
        self._process = subprocess.Popen(self._argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._answers = queue.Queue(1)
        threading.Thread(target=self._read, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()

    def _read(self):
        with self._process.stdout as stdout:
            for line in stdout:
                self._answers.put(line)
        self._answers.put(None)

    def ask(self, call, /, **arguments):
        """Return the client's answer; raise ClientError if the client threw."""
        self._process.stdin.write(json.dumps({"do": call} | arguments) + "\n")
        self._process.stdin.flush()
        line = self._answers.get(timeout=SECONDS)
        assert line is not None, f"it ended, with exit code {self._process.wait()}"
        answer = json.loads(line)
        if "error" in answer:
            raise ClientError(answer["error"], answer["message"])
        return answer["result"]
