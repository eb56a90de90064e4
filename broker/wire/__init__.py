"""Kafka's wire format: frames, headers, hand-written codecs for the hot APIs, schema-driven ones for the cold APIs."""
