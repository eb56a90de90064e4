"""A broker that fails on demand, for tests of clients."""
