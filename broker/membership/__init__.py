"""This broker's part in a cluster: its life, the orders that it takes, and its requests to other brokers.

The room has no I/O.
"""
