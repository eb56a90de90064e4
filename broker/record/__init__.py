"""Record batches (magic 2): their header, records and compression."""
