"""The shell around the engine: sockets, the reactor, worker threads."""
