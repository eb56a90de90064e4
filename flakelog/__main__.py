"""`python -m flakelog` is `flakelog`."""

from flakelog.cli import main

main(prog_name="flakelog")
