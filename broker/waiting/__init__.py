"""Requests that wait for an event or a deadline, and calls that wait for their time (Kafka's purgatory)."""
