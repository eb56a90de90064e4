"""The secret behind the salts of unknown users: a file in the data directory, which only its owner can read.

The brokers of one machine share one, and those of a cluster too, so that an unknown user has the same salt at each.
"""

import os
import secrets
from pathlib import Path

from broker.log.storage.open_files import FILE_MODE
from broker.security.sasl.unknown_users import SECRET_BYTES

FILE = "sasl.secret"


def secret_of(directory: Path) -> bytes:
    """Return the secret of a directory. The first call makes it. Raise OSError."""
    file = directory / FILE
    if secret := _read(file):
        return secret
    file.unlink(missing_ok=True)
    made = _write(directory, secrets.token_bytes(SECRET_BYTES))
    try:
        os.link(made, file)
    except FileExistsError:
        pass  # another broker was faster
    finally:
        made.unlink()
    return _read(file) or b""


def keep_secret(directory: Path, secret: bytes) -> None:
    """Take another secret into a directory, that of its cluster. Raise OSError."""
    if _read(directory / FILE) != secret:
        os.replace(_write(directory, secret), directory / FILE)


def _write(directory: Path, secret: bytes) -> Path:
    """Write a secret to a file of this process, and return its path."""
    made = directory / f"{FILE}.{os.getpid()}"
    fd = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
    try:
        os.write(fd, secret)
        os.fsync(fd)
    finally:
        os.close(fd)
    return made


def _read(file: Path) -> bytes | None:
    """Return the secret in a file, None unless it is whole."""
    try:
        secret = file.read_bytes()
    except FileNotFoundError:
        return None
    return secret if len(secret) == SECRET_BYTES else None
