"""What a broker knows of topics, settings and producer ids: an image, its document on the disk, and its changes."""
