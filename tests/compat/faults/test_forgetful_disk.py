"""The disk of the tests of power cuts keeps synced writes, and forgets all others."""

import subprocess
import sys

import pytest

from tests.compat.faults.forgetful_disk import ForgetfulDisk

WRITE = """
import os, sys
os.chdir(sys.argv[1])

def write(name, data, flags=os.O_CREAT):
    fd = os.open(name, os.O_WRONLY | flags)
    os.write(fd, data)
    return fd

def sync(fd):
    os.fsync(fd)
    os.close(fd)

for number in range(3):
    sync(write(f"{number}", b"0123456789"))
os.mkdir("inside")
sync(os.open(".", os.O_RDONLY))

write("0", b"abc", os.O_APPEND)                    # not synced
os.truncate("1", 4)                                # the file ends sooner, and gets other bytes
sync(write("1", b"wxyz", os.O_APPEND))
os.rename("2", "inside/2")                         # the names are not synced
sync(write("inside/new", b"without a name"))
print(sorted(os.listdir(".")), sorted(os.listdir("inside")), open("0").read())
"""
READ = """
import os, sys
os.chdir(sys.argv[1])
print(sorted(os.listdir(".")), os.listdir("inside"), [open(name).read() for name in "012"])
print(open("/proc/sys/kernel/random/boot_id").read().strip())
"""


@pytest.fixture
def disk(tmp_path):
    with ForgetfulDisk(tmp_path / "disk") as disk:
        yield disk


def run(disk, program):
    """Run a program that uses the disk; return what it prints."""
    command = [*disk.prefix, sys.executable, "-c", program, str(disk.directory)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_after_a_power_cut_a_disk_has_what_was_synced_under_the_names_that_were_synced(disk):
    assert run(disk, WRITE) == ["['0', '1', 'inside'] ['2', 'new'] 0123456789abc"]
    disk.cut_power()
    files, boot_id = run(disk, READ)
    assert files == "['0', '1', '2', 'inside'] [] ['0123456789', '0123wxyz', '0123456789']"
    disk.cut_power()
    assert run(disk, READ)[0] == files
    assert run(disk, READ)[1] not in (boot_id, "")
