"""Metadata: topics, settings and producer ids as an image, its document on the disk, and its changes."""
