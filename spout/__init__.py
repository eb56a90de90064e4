"""Spouts, bolts and topologies: Storm's contract."""
