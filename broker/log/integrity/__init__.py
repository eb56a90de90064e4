"""Integrity: damage on the disk is found by name, and never served as data."""
