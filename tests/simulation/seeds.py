"""Seeds of a simulated cluster: the histories of a unit run and of the soak, and the seeds that notice a planted fault.

`kind` is the class of the world, whose `history` raises an error if a promise is broken. `file` is the test file that
plays one seed again.
"""

import os
import sys
import time
from collections import Counter

SOAK_SEEDS = os.environ.get("FLAKELOG_SEEDS", "0-9999")
"""The soak begins with the seeds of `check_noticed`: each of these passes while no fault is planted."""
ORDER = "PYTHONHASHSEED={PYTHONHASHSEED} ".format(**os.environ) if "PYTHONHASHSEED" in os.environ else ""
"""The order of sets, which is part of a history; `make` fixes it. Without the variable each process has its own."""
FAULT_SEEDS = 2_000
"""The seeds that may be needed to notice a planted fault."""


def play(kind, seed, file):
    """Play a seed. Return how often clients did what, and how administrators were answered."""
    world = kind(seed)
    try:
        world.history()
    except BaseException as error:
        error.add_note("\n".join(world.lines[-40:]))
        error.add_note(f"again: {ORDER}FLAKELOG_SEED={seed} .venv/bin/python -m pytest {file} -k one_seed")
        raise
    return world.counts


def play_all(kind, seeds, file):
    """Play these seeds. Return the sum of what each did."""
    counts = Counter()
    for seed in seeds:
        counts += play(kind, seed, file)
    return counts


def play_one(kind, file):
    """Play the seed of FLAKELOG_SEED, or 0."""
    play(kind, int(os.environ.get("FLAKELOG_SEED", "0")), file)


def soak(kind, cpu_s_max, file):
    """Play the seeds of FLAKELOG_SEEDS, or 10,000, for at most `cpu_s_max` of CPU time."""
    first, _, last = SOAK_SEEDS.partition("-")
    began, number = time.process_time(), 0
    for seed in range(int(first), int(last or first) + 1):
        play(kind, seed, file)
        number += 1
        if time.process_time() - began > cpu_s_max:
            break
    cpu_s = time.process_time() - began
    print(f"{number} seeds, {cpu_s:.0f} s of CPU, {cpu_s / number:.2f} s a seed")


def check_noticed(kind, fault, monkeypatch):
    """Plant a fault, and check that a seed notices it."""
    fault(monkeypatch)
    for seed in range(FAULT_SEEDS):
        try:
            kind(seed).history()
        except Exception as error:  # an assertion of the oracle, or of a broker that meets what cannot be
            print(f"{fault.__name__}: noticed by seed {seed}: {error}"[:300])
            return
    raise AssertionError(f"{FAULT_SEEDS} seeds do not notice: {fault.__doc__}")


def main(kind):
    """Print the histories of the seeds on the command line."""
    for seed in map(int, sys.argv[1:]):
        began = time.process_time()
        world = kind(seed, print)
        try:
            world.history()
        finally:
            print(f"seed {seed}: {time.process_time() - began:.2f} s of CPU, {world.now_ms} ms", dict(world.counts))
