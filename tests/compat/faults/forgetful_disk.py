"""A disk that forgets unsynced writes, and a kernel that boots, for a power cut under a real server (Linux).

The disk is a file system of `forgetful_disk_program` in a separate mount namespace. There the kernel's boot id is a
file of the test, because a server compares it to learn whether the machine has lost power.
"""

import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.compat.server_process import ROOT

_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_PROGRAM = "tests.compat.faults.forgetful_disk_program"
_MOUNT = f'mount --bind "$1" {_BOOT_ID} && shift && exec "$@"'


class ForgetfulDisk:
    """A disk at `directory` for processes run under `prefix`; other processes reach it by `root`.

    The constructor skips the test with a reason if the system does not allow the mount.
    """

    def __init__(self, directory):
        if not (shutil.which("unshare") and shutil.which("nsenter") and os.path.exists("/dev/fuse")):
            pytest.skip("no disk that forgets: unshare and nsenter (util-linux), or /dev/fuse, are not here")
        self.directory = Path(directory)
        self.directory.mkdir()
        self._boot_id = self.directory.with_name(f"{self.directory.name}-boot-id")
        self._boot()
        command = ["unshare", "-U", "-r", "-m", "sh", "-c", _MOUNT, "sh", str(self._boot_id)]
        self._server = subprocess.Popen(
            [*command, sys.executable, "-m", _PROGRAM, str(self.directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        if self._server.stdout.readline() != "mounted\n":
            reason = self._server.communicate()[1].strip()
            pytest.skip(f"no disk that forgets: this user may not mount one ({reason})")
        self.prefix = ("nsenter", "-t", str(self._server.pid), "-U", "--preserve-credentials", "-m")
        self.root = Path(f"/proc/{self._server.pid}/root{self.directory}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._server.communicate()

    def cut_power(self):
        """Forget unsynced writes, and boot. The processes that use the disk must have ended."""
        self._server.stdin.write("cut\n")
        self._server.stdin.flush()
        assert self._server.stdout.readline() == "cut\n"
        self._boot()

    def _boot(self):
        self._boot_id.write_text(f"{uuid.uuid4()}\n")
