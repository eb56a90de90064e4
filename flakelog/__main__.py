"""The entry point of `python -m flakelog`, which is the command `flakelog`."""

from flakelog.cli import main

main(prog_name="flakelog")
