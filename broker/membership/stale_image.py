"""An image of the cluster that is not the present controller's, in words for people."""

from broker.metadata.image import NO_CONTROLLER
from broker.now import Now

STALE_MS = 20_000
"""Within this time a new controller tells each broker of the cluster, even if many come and go."""


class StaleImage:
    """Compares the controller that the coordinator names with the one whose image this broker has.

    They differ for a moment after each election. If they go on to differ, the new controller does not reach this
    broker, which then shows a cluster of the past.
    """

    def __init__(self) -> None:
        self.problem: str | None = None
        self._controller_id = NO_CONTROLLER
        """The controller that is waited for; NO_CONTROLLER while the image is its own."""
        self._due_ms = 0

    def follow(self, controller_id: int, image_controller_id: int, now: Now) -> None:
        """Take the present ids of both; `controller_id` is -1 while the coordinator names none."""
        if controller_id in (NO_CONTROLLER, image_controller_id):
            self._controller_id, self.problem = NO_CONTROLLER, None
        elif controller_id != self._controller_id:
            self._controller_id, self._due_ms, self.problem = controller_id, now.ms + STALE_MS, None
        elif self._due_ms <= now.ms:
            known = "none" if image_controller_id == NO_CONTROLLER else f"that of broker {image_controller_id} before"
            self.problem = (
                f"the controller, broker {controller_id}, does not reach this broker, whose image of the cluster is "
                f"{known}: leaders and live brokers may be others by now. The logs of both say why"
            )

    def next_deadline_ms(self) -> int | None:
        """Return when `follow` may find a problem."""
        return None if self._controller_id == NO_CONTROLLER or self.problem is not None else self._due_ms
