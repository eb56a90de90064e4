"""One partition's log and all that keeps it: segments, indexes, ids, recovery."""
