"""The version of this code, in one place: setup.cfg reads it from here."""

VERSION = "0.1.0"
