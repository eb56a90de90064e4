"""What waits: requests for an event or a deadline, and calls for their time. Kafka calls it the purgatory."""
