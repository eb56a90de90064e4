"""The controller of a cluster, without I/O: registration, election, leaders of partitions, deletion, producer ids.

Beside it stands what any broker reads and writes in the coordinator: settings, quotas and credentials, the topics that
clients need, and the data that the directory of a server alone brings along.

The room coordinates brokers by operations on the coordinator, as values, and orders them by the messages between
brokers.
"""
