"""The storage port, and its implementations: a directory, and memory."""
