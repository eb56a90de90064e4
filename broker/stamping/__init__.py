"""Stamping: the ids of appended batches, and the partitions that wait for the clock to reach their last id."""
