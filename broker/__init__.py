"""A commit log behind Kafka's wire protocol."""
