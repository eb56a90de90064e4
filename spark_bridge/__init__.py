"""Exact replay of ranges of the log through PySpark."""
