"""The packages that a Python on Spark's executors needs, and what to do where one is missing.

They are the extra `executor` of setup.cfg. Spark brings pyspark. docs/spark-cluster.md says how to bring the others.
"""

import re
import sys
from importlib.util import find_spec

EXECUTOR_PACKAGES = ("crc32c", "cramjam", "kio", "numpy", "pyarrow")
"""By their names in imports, which are also their names on PyPI."""

TLS_PACKAGE = "cryptography"
"""A read over TLS needs this package in addition."""

RECIPE = (
    "install it there with: pip install 'flakelog[executor]', or send an environment that has it (spark.archives); "
    "see docs/spark-cluster.md"
)

_MISSING = re.compile(r"ModuleNotFoundError: No module named '(\w+)")


def check_packages() -> None:
    """Raise ImportError, in one line, if this Python lacks a package that a task needs."""
    missing = [name for name in EXECUTOR_PACKAGES if find_spec(name) is None]
    if missing:
        raise ImportError(f"{sys.executable} has no {', '.join(missing)}, which a read of Flakelog needs: {RECIPE}")


def explain(error: str) -> str:
    """Return the last line of a text that ends in an error of Spark, such as a traceback of a worker.

    If the worker lacks Flakelog's packages, or pyarrow, which pyspark itself imports first, the line has the recipe.
    """
    lines = [line.strip() for line in error.splitlines() if line.strip() and not line.startswith(" ")]
    for line in reversed(lines):
        match = _MISSING.search(line)
        if match and match.group(1) in ("spark_bridge", TLS_PACKAGE, *EXECUTOR_PACKAGES):
            return f"the Python of Spark's workers has no {match.group(1)}: {RECIPE}"
    return lines[-1] if lines else error
