"""The replication of partitions, without I/O: a leader's view of its followers, and a follower's way to its leader."""
