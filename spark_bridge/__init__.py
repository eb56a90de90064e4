"""Exact replay of ranges of the log through PySpark.

    selection   the ranges to read: options.parse -> pinned.pin (selector.resolve, plan.plan, manifest), on the driver
    reading     one range: range_reader -> range_fetch (range_cursor checks completeness, arrow_decode makes rows), in
                each task
    source      the Python Data Source over both
    output      the files that a job writes
    replay      the job: make_manifest -> save_manifest -> replay -> receipt.prove
    session     a local Spark session
"""
