"""The selection of a read: from its options to a manifest, which fixes it once."""
