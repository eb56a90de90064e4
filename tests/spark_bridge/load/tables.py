"""What the tests of both table formats share."""


class Killed(BaseException):
    """The driver's process ends here."""


def offsets(log):
    """Return (partition, offset) of all records of a log that begins at 0."""
    return [(partition, offset) for partition, end in enumerate(log.ends) for offset in range(end)]
