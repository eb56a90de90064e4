"""Loads: the messages after the last load go into a destination, each message once."""
