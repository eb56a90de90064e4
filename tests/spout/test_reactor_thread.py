"""The reactor's thread: what a caller in another thread learns when a component holds it."""

import threading

import pytest
from twisted.python import threadable

from spout.reactor_thread import Blocked, call


class Busy:
    """A reactor whose thread never gets to its calls."""

    def callFromThread(self, work):  # noqa: N802, Twisted's name
        pass


def test_a_call_of_a_reactor_that_code_holds_names_the_line_of_that_code(monkeypatch):
    held, released = threading.Event(), threading.Event()

    def execute():
        held.set()
        released.wait()  # a line of this file, though the thread is inside the standard library

    thread = threading.Thread(target=execute)
    thread.start()
    held.wait()
    monkeypatch.setattr(threadable, "ioThread", thread.ident)
    try:
        with pytest.raises(Blocked) as caught:
            call(Busy(), list, timeout=0.01)
    finally:
        released.set()
        thread.join()
    line = execute.__code__.co_firstlineno + 2
    assert str(caught.value) == (
        f"the engine's thread has not answered for 0.0 s: "
        f'it is at "{__file__}", line {line}, in execute, and nothing else runs meanwhile'
    )
