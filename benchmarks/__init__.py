"""Load programs of our own, each figure beside its peer's in the same run: `make bench`."""
