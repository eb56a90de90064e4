"""A disk of a few megabytes for tests to fill: a tmpfs in a separate mount namespace (Linux, root)."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest


class SmallDisk:
    """A tmpfs mounted at `directory` for processes run under `prefix`; other processes reach it by `root`.

    The constructor skips the test with a reason if the system does not allow the mount.
    """

    def __init__(self, directory, size_bytes):
        if not (shutil.which("unshare") and shutil.which("nsenter")):
            pytest.skip("no small disk: unshare and nsenter (util-linux) are not here")
        self.directory = Path(directory)
        self.directory.mkdir()
        script = 'mount -t tmpfs -o "size=$1" none "$2" && echo mounted && read _'
        self._holder = subprocess.Popen(
            ["unshare", "-m", "sh", "-c", script, "sh", str(size_bytes), str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        if self._holder.stdout.readline() != "mounted\n":
            reason = self._holder.communicate()[1].strip()
            pytest.skip(f"no small disk: this user may not mount one ({reason})")
        self.prefix = ("nsenter", "-t", str(self._holder.pid), "-m")
        self.root = Path(f"/proc/{self._holder.pid}/root{self.directory}")
        self._ballast = self.root / "ballast"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._holder.communicate()

    def take(self, size_bytes):
        """Occupy `size_bytes` of the disk, so that `free` gives back at least this much."""
        self._ballast.write_bytes(bytes(size_bytes))

    def fill(self):
        """Write until no byte is free."""
        with open(self._ballast, "ab", buffering=0) as ballast:
            for size in (1 << 16, 1 << 12, 1):
                while self._write(ballast, bytes(size)):
                    pass

    @staticmethod
    def _write(ballast, data):
        try:
            return os.write(ballast.fileno(), data)
        except OSError:
            return 0

    def free(self):
        self._ballast.unlink()
