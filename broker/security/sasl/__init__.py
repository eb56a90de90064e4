"""Who a client is, by SASL (KIP-12, KIP-43, KIP-84, KIP-152, KIP-255, KIP-368): the exchanges of it, without I/O."""
