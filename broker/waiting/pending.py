"""Marks that a part of the broker has work, so that the engine asks no idle part for work."""


class Pending:
    """Each attribute is True while a part may have more of what it names than when the engine asked last.

    `jobs` are for threads, `operations` for the coordinator, `calls` for other brokers and `fetches` for the leaders of
    followed partitions. `deadline`: the deadline of a part may be earlier than before.

    A part sets an attribute when that becomes true. The engine clears it when it asks all parts.
    """

    __slots__ = ("jobs", "operations", "calls", "fetches", "deadline")

    def __init__(self) -> None:
        self.changed()

    def changed(self) -> None:
        """Have all parts asked, after an event that any of them may answer with work."""
        self.jobs = self.operations = self.calls = self.fetches = self.deadline = True
