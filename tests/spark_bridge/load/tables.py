"""What the tests of both table formats share."""

import json
from dataclasses import replace

from spark_bridge.load import load as loads


class Killed(BaseException):
    """The driver's process ends here."""


def offsets(log):
    """Return (partition, offset) of all records of a log that begins at 0."""
    return [(partition, offset) for partition, end in enumerate(log.ends) for offset in range(end)]


def as_an_older_version_wrote_it(place):
    """Take out of all plans and receipts below a directory what versions before load.target did not write."""
    for path in place.rglob("*.plan.json"):
        old = replace(loads.from_json(path.read_text()), target=None)
        path.write_text(old.to_json())
        for kind in ("decision", "receipt"):
            other = path.with_name(path.name.replace("plan", kind))
            if other.exists():
                fields = json.loads(other.read_text())
                fields.pop("commit", None)
                other.write_text(json.dumps(fields | {"load_sha256": old.sha256}))


def record_of(place):
    """Return the files of the record of loads below a directory, with their bytes."""
    return {path: path.read_bytes() for path in place.rglob("*") if "_flakelog" in str(path) and path.is_file()}
