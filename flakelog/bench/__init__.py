"""Loads that measure a broker or an id service, for `flakelog bench`."""
