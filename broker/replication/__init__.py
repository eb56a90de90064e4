"""The replication of partitions, without I/O: a leader's view of its followers, and what a follower asks its leader."""
