"""A topology for Apache Storm: its Flux YAML, and a local cluster that runs it for development."""
