"""Consumer groups: the state machine of a group, its committed offsets, and the group coordinator."""
