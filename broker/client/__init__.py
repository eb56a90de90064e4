"""Clients for any broker of Kafka's protocol, used by Flakelog's programs."""
