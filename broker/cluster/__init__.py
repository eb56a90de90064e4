"""The controller of a cluster, without I/O: registration, election, leaders of partitions, deletion, producer ids.

It coordinates brokers by operations on the coordinator, as values, and orders them by the messages between brokers. No
server uses it yet.
"""
