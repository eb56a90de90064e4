"""Marks that a part of the broker has work, so that the engine asks no idle part for work."""


class Pending:
    """`jobs`: a part may have jobs for threads. `deadline`: the deadline of a part may be earlier than before.

    A part sets an attribute when that becomes true. The engine clears it when it asks all parts.
    """

    __slots__ = ("jobs", "deadline")

    def __init__(self) -> None:
        self.jobs = True
        self.deadline = True

    def changed(self) -> None:
        """Have all parts asked, after an event that any of them may answer with work."""
        self.jobs = True
        self.deadline = True
