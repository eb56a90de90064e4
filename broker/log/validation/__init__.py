"""Rules for the batches that producers send."""
