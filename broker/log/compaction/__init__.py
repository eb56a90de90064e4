"""Compaction: which segments are cleaned, and how."""
