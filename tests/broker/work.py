"""The work that a call does, in steps of the interpreter: no clock, so that a test may compare two calls."""

import sys
from pathlib import Path

BROKER = str(Path(__file__).resolve().parents[2] / "broker")


def steps_of(call):
    """Return how many bytecodes of the broker's modules a call executes."""
    steps = 0

    def count(frame, event, argument):
        nonlocal steps
        steps += event == "opcode"
        return count

    def enter(frame, event, argument):
        if not frame.f_code.co_filename.startswith(BROKER):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return count

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        call()
    finally:
        sys.settrace(before)
    return steps


def grows_in_proportion(work_of, size):
    """Return True if twice the size costs about twice the work, measured between `size` and four times that.

    `work_of(size)` returns the steps of a call of that size. Where work grows with the square, the second step costs
    four times the first.
    """
    once, twice, fourfold = (work_of(size * factor) for factor in (1, 2, 4))
    return fourfold - twice < 2.5 * (twice - once)
