"""A parent of brokers as a process: argv[1] has its options as JSON, its children's commands among them."""

import json
import sys
from pathlib import Path

from flakelog.processes.parent import Parent, Program


def main():
    options = json.loads(sys.argv[1])
    programs = [Program(f"broker {number}", argv) for number, argv in enumerate(options["commands"], 1)]
    sockets = {name: (host, port) for name, (host, port) in options["sockets"].items()}

    def report(line):
        print(line, file=sys.stderr, flush=True)

    limits = {name: options[name] for name in ("beat_timeout_ms", "stop_timeout_ms")}
    parent = Parent(programs, sockets, Path(options["cluster_dir"]), report, **limits, json_log=options["json_log"])
    ending = parent.run()
    if ending.reason:
        report(f"Error: {ending.reason}")
    raise SystemExit(ending.status)


if __name__ == "__main__":
    main()
