"""This broker's part in a cluster: its requests to other brokers.

The room has no I/O. No server uses it yet.
"""
