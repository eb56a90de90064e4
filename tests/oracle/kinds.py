"""The kinds of scripts, each with the comparison that the reports of the two trees must pass."""

from tests.oracle import frames, interleaved, neighbours
from tests.oracle.compare import difference, difference_but_for_ids


def neighbours_difference(script, before, now):
    """Return the first rule of `neighbours` that is broken, in words; None if all rules hold."""
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
