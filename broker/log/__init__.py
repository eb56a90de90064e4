"""The log of a partition and its parts: segments, indexes, ids, recovery."""
