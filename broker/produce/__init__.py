"""Produce: a batch is validated, staged with the other batches of its turn, appended, and may wait for its disk."""
