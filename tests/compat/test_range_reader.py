"""A range reader as a Spark task has it: what it imports, and what it needs on an executor."""

import subprocess
import sys

from spark_bridge.reading import range_reader


def test_a_task_imports_nothing_of_the_servers_and_no_spark():
    """A Spark task loads neither server modules nor Spark (DESIGN section 9).

    import-linter checks the imports; this test checks the modules that they load.
    """
    code = f"import {range_reader.__name__}, sys; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"numpy", "pyarrow", "crc32c", "cramjam", "kio"} <= set(loaded)
    assert not {"twisted", "kazoo", "klein", "confluent_kafka", "pyspark", "pandas", "idgen"} & set(loaded)
