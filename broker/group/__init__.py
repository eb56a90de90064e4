"""Consumer groups: one group's state machine, committed offsets, their coordinator."""
