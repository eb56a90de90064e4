"""Load programs that measure Flakelog beside its peers in the same run: `make bench`, README.md."""
