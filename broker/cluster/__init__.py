"""The controller of a cluster, without I/O: registration, election, leaders of partitions, deletion, producer ids; and
what any broker reads and writes in the coordinator: settings, quotas, credentials, topics that a client asked for.

It coordinates brokers by operations on the coordinator, as values, and orders them by the messages between brokers. No
server uses it yet.
"""
