"""All of the largest requests, in `CASES`."""

from tests.broker.largest_requests import cluster, groups, records, topics
from tests.broker.largest_requests.case import ATOMIC, CASES, FLAT

__all__ = ["ATOMIC", "CASES", "FLAT", "cluster", "groups", "records", "topics"]
