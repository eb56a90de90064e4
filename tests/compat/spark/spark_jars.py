"""The jars of every Spark session in this process: those of Spark's connector for Kafka, where Maven brought them.

Sessions of one process share a JVM, and a JVM loads only the jars that its first session names. So all of them name
these.
"""

from benchmarks.consumers import CONNECTOR

SETTINGS = {"spark.jars": CONNECTOR.read_text().strip().replace(":", ",")} if CONNECTOR.exists() else {}
FOR_SESSION = {name.replace(".", "__"): value for name, value in SETTINGS.items()}
"""The same as arguments of `spark_session`."""
