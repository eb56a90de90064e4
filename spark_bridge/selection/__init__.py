"""From a read's options to a manifest: what is read, fixed once."""
