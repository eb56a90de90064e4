"""The authentication of clients by SASL, without I/O.

KIP-12, KIP-43, KIP-84, KIP-152 and KIP-368 have the rules of Kafka.
"""
