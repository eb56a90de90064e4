"""Consumers that agree through ZooKeeper about who reads which partition, as the first Kafka's did."""
