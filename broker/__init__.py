"""The log, and Kafka's wire protocol in front of it."""
