"""The kinds of scripts, each with what must be the same of the two trees."""

from tests.oracle import frames, interleaved, neighbours
from tests.oracle.compare import difference, difference_but_for_ids


def neighbours_difference(script, before, now):
    """What does not hold with many connections in a turn; None where all does."""
    try:
        neighbours.hold(script, before, now)
    except neighbours.Unlike as unlike:
        return str(unlike)
    return None


KINDS = {
    "bytes": (frames.script, difference),
    "several": (frames.several_script, difference_but_for_ids),
    "full_disk": (frames.full_disk_script, difference_but_for_ids),
    "neighbours": (interleaved.script, neighbours_difference),
    "limits": (interleaved.limited_script, neighbours_difference),
}
"""{name: (what makes a script from a seed and a number of frames, what finds a difference)}"""
