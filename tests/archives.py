"""Archives that the tests unpack. They made them themselves, or git did."""

import tarfile


def unpack_tar(archive, directory):
    """Unpack an open tar file. The filter of PEP 706 is missing before Python 3.11.4, and then the default is used."""
    safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    archive.extractall(directory, **safe)
