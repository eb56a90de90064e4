"""A common port for coordination services: versioned and ephemeral nodes, children and watches."""
