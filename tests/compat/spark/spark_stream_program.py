"""A program that runs a stream, and kills itself at a given step: it copies a topic into Parquet files.

    python -m tests.compat.spark.spark_stream_program SERVERS TOPIC DIRECTORY [BATCH:before | BATCH:after]

Each batch is written to a directory of its own, which a second attempt replaces. "before" kills the driver and its JVM
before the batch is written, "after" between the write and Spark's commit.
"""

import os
import signal
import sys

from spark_bridge.session import spark_session


def main(servers, topic, directory, dies_at=""):
    def write(rows, number):
        die_at(f"{number}:before")
        rows.select("partition", "offset").write.mode("overwrite").parquet(f"{directory}/out/{number}")
        die_at(f"{number}:after")

    def die_at(step):
        if step == dies_at:
            os.killpg(os.getpgrp(), signal.SIGKILL)

    spark = spark_session("stream", master="local[1]")
    options = {"kafka.bootstrap.servers": servers, "subscribe": topic, "maxOffsetsPerTrigger": "100"}
    # The answer to Spark's question for the start differs from run to run.
    options["startingOffsets"] = "latest" if os.path.exists(f"{directory}/checkpoint/offsets/0") else "earliest"
    rows = spark.readStream.format("flakelog").options(**options).load()
    stream = rows.writeStream.foreachBatch(write).option("checkpointLocation", f"{directory}/checkpoint")
    query = stream.trigger(availableNow=True).start()
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
