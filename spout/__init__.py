"""Spouts, bolts and topologies with Storm's contract."""
