"""Kafka's tables of settings and APIs, and the configurations of the broker."""
