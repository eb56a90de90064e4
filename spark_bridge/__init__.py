"""Exact replay of ranges of the log through PySpark.

Steps of a read: options.parse -> pinned.pin (selector.resolve, plan.plan, manifest) on the driver; range_reader ->
range_fetch (range_cursor checks completeness, arrow_decode makes rows) in each task. Steps of a replay:
replay.make_manifest -> save_manifest -> replay (parquet_file in each task) -> receipt.prove.
"""
