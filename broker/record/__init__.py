"""Record batches (magic 2): the header, the records inside, compression."""
