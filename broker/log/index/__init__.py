"""The files beside a segment: offsets and times, ids, aborted transactions."""
