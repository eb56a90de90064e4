"""What the parts of a broker register, so that the engine asks no idle part for work."""


class Pending:
    """`jobs`: a part may have jobs for threads. `deadline`: a part may be due earlier than it last said.

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
