"""The registry of early Kafka's clients in ZooKeeper: the brokers that live, and the groups of consumers."""
