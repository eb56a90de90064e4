"""The load programs in C, compiled when first needed: Python would be the bottleneck where they stand.

They go to build/benchmarks/, named by what they were made of. librdkafka is the one inside the confluent-kafka wheel.
"""

import hashlib
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

SOURCES = Path(__file__).parent / "native"
BUILT = Path(__file__).parent.parent / "build" / "benchmarks"
FLAGS = ["-std=gnu11", "-O2", "-Wall", "-Wextra"]


class Unavailable(Exception):
    """What a row needs is not here; the message says what."""


def librdkafka() -> Path:
    """The library of the confluent-kafka wheel; Unavailable."""
    spec = find_spec("confluent_kafka")
    if spec is None or spec.origin is None:
        raise Unavailable("confluent-kafka is not installed")
    found = sorted((Path(spec.origin).parent.parent / "confluent_kafka.libs").glob("librdkafka-*.so*"))
    if not found:
        raise Unavailable("this confluent-kafka carries no librdkafka of its own (Linux wheels do)")
    return found[0]


def program(name: str) -> str:
    """The path of a compiled program; Unavailable without a compiler, or when it does not compile."""
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
