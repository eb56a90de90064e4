"""What runs on executors: ranges, rows, the requests of a read, and decoding to Arrow."""
