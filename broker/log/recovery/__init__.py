"""Starting again: the checkpoint, the clean stop, and the walk over what a crash has left."""
