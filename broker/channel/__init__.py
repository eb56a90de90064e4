"""What the parts of an engine share: connections, the queue of their requests, the clock, and the answers."""
