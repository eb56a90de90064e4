"""One port for everything that coordinates: ephemeral and versioned nodes, children, watches."""
