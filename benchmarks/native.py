"""The load programs in C: compiling and running them. Python would be slower than the servers it loads.

The programs go to build/benchmarks/. Their names contain a hash of the sources and flags, so that a change compiles
them anew. librdkafka is the library inside the confluent-kafka wheel.
"""

import hashlib
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

SOURCES = Path(__file__).parent / "native"
BUILT = Path(__file__).parent.parent / "build" / "benchmarks"
FLAGS = ["-std=gnu11", "-O2", "-Wall", "-Wextra"]
PROGRAM_SECONDS = 600


class Unavailable(Exception):
    """This machine lacks something that a row needs; the message names it."""


def librdkafka() -> Path:
    """Find the library of the confluent-kafka wheel. Raises Unavailable."""
    spec = find_spec("confluent_kafka")
    if spec is None or spec.origin is None:
        raise Unavailable("confluent-kafka is not installed")
    libraries = sorted((Path(spec.origin).parent.parent / "confluent_kafka.libs").glob("librdkafka-*.so*"))
    if not libraries:
        raise Unavailable("this confluent-kafka has no librdkafka inside (Linux wheels have one)")
    return libraries[0]


def program(name: str) -> str:
    """Compile a program if its sources have changed, and return its path. Raises Unavailable."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise Unavailable("there is no C compiler (cc)")
    source = SOURCES / f"{name}.c"
    headers = sorted(SOURCES.glob("*.h"))
    link: list[str] = []
    if "kafka.h" in source.read_text():
        library = librdkafka()
        link = [str(library), f"-Wl,-rpath,{library.parent}"]
    made_of = b"".join(path.read_bytes() for path in (source, *headers)) + " ".join(FLAGS + link).encode()
    target = BUILT / f"{name}-{hashlib.sha256(made_of).hexdigest()[:12]}"
    if not target.exists():
        BUILT.mkdir(parents=True, exist_ok=True)
        made = subprocess.run(
            [compiler, *FLAGS, "-o", str(target), str(source), *link], capture_output=True, text=True
        )
        if made.returncode:
            raise Unavailable(f"{source.name} does not compile: {made.stderr.strip()}")
    return str(target)


def run_program(*argv: str) -> list[float]:
    """Run a load program and return the numbers it prints. RuntimeError has its message when it fails."""
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PROGRAM_SECONDS)
    if done.returncode:
        raise RuntimeError(f"{Path(argv[0]).name}: {done.stderr.strip()}")
    return [float(word) for word in done.stdout.split()]


@contextmanager
def child(*argv: str) -> Iterator[tuple[int, str]]:
    """Run a small server for a while, and yield its pid and the first line it prints. It ends with its input."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        yield process.pid, process.stdout.readline().strip()
    finally:
        process.communicate()
