"""What our own programs speak to any broker of Kafka's protocol with."""
