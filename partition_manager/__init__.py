"""Progress of one log partition: messages pending, failed, emitted and committed."""
