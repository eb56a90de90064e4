"""SHELL (pyspark): registers format("flakelog") with every Spark session that can import this package.

Spark (4.0 and later) imports each top-level module whose name begins with pyspark_, and registers its DefaultSource. An
exception here would hide the data sources of other packages too. So the format is registered even if a dependency is
missing, and the first use of the format then fails with one line that names the dependency.
"""

import sys

from pyspark.sql.datasource import DataSource

from spark_bridge.source.one_line import SparkError

__all__ = ["DefaultSource"]

RECIPE = "python -m pip install 'flakelog[spark]'"

try:
    from spark_bridge.source.datasource import FlakelogDataSource as DefaultSource
except ImportError as error:
    _MISSING = f"format flakelog cannot be used by {sys.executable}: {error}; {RECIPE}"

    class DefaultSource(DataSource):  # type: ignore[no-redef]
        """A source whose use names the missing dependency."""

        def __init__(self, options: dict[str, str]) -> None:
            raise SparkError(_MISSING)

        @classmethod
        def name(cls) -> str:
            return "flakelog"
