"""Kafka's wire format: frames, headers, the hot codecs by hand, the cold ones from the schema."""
