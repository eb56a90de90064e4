"""SHELL (standard streams, exit of the process): `python -m spout.multilang MODULE:TOPOLOGY COMPONENT`.

Storm starts this for each task of a component. The user's module is imported after the streams are taken over.
"""

import sys

from spout.multilang.output import CapturedOutput

USAGE = """usage: python -m spout.multilang MODULE:TOPOLOGY COMPONENT

Apache Storm starts this for each task; `flakelog spout storm MODULE:TOPOLOGY` writes the topology for Storm."""


def main() -> None:
    """Run one task. The exit code is 0 when Storm has ended it, 1 after an error, 2 for wrong usage."""
    if len(sys.argv) != 3:
        print(USAGE, file=sys.stderr)
        sys.exit(2)
    output = CapturedOutput()
    from spout.multilang.shell import run
    from spout.process_end import exit_within_seconds

    code = run(sys.argv[1], sys.argv[2], output)
    output.close()
    for line in output.take():
        output.say(f"{line.text}\n")
    exit_within_seconds(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
