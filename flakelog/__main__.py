"""The entry point of `flakelog` and of `python -m flakelog`."""

import sys


def main() -> None:
    """Run the command line. Ctrl-C counts from the first import on."""
    try:
        from flakelog import garbage

        garbage.pause()
        from flakelog.cli import main as run
    except KeyboardInterrupt:
        sys.stderr.write("Error: ended by Ctrl-C\n")
        sys.exit(130)
    run(prog_name="flakelog")


if __name__ == "__main__":
    main()
