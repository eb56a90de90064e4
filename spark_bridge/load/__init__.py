"""Loads: what came since the last load goes into a destination, each message once."""
