"""Who a peer is, and what protects its connection: certificates, principals and handshakes, without I/O."""
