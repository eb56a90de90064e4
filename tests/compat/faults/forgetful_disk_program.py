"""Serve a file system that forgets unsynced writes at a power cut: python forgetful_disk_program.py DIRECTORY

The program mounts it at DIRECTORY, in its own mount namespace, and prints "mounted". For each line "cut" on its
standard input it cuts the power, and prints "cut". It ends with its standard input.

The program speaks the protocol of /dev/fuse (linux/fuse.h, version 7.31), because libfuse is rarely installed. The
kernel may keep no name and no attribute, so that it asks again after a power cut.
"""

import ctypes
import errno
import os
import select
import struct
import sys
import time

from tests.compat.faults.forgetful_files import ROOT, Directory, File, ForgetfulFiles

VERSION = 7, 31
WRITE_BYTES_MAX = 1 << 20
PAGE_BYTES = 4096
BUFFER_BYTES = WRITE_BYTES_MAX + PAGE_BYTES
BLOCK_BYTES = 512
DISK_BLOCKS = 1 << 20
NAME_BYTES_MAX = 255
ASYNC_READ, BIG_WRITES, MAX_PAGES = 1 << 0, 1 << 5, 1 << 22  # flags of INIT
SETS_MODE, SETS_SIZE, SETS_MTIME, SETS_MTIME_NOW = 1 << 0, 1 << 3, 1 << 5, 1 << 8  # `valid` of SETATTR
MS_NOSUID_NODEV = 6
NO_ANSWER = None

HEADER = struct.Struct("<IIQQIIIHH")  # length, opcode, unique, node, uid, gid, pid, extensions, padding
ANSWER = struct.Struct("<IiQ")  # length, -errno, unique
ATTRIBUTES = struct.Struct("<6Q10I")
ENTRY = struct.Struct("<4Q2I")  # node, generation, how long name and attributes may be kept
ATTRIBUTES_VALID = struct.Struct("<Q2I")
OPENED = struct.Struct("<Q2I")
SET_ATTRIBUTES = struct.Struct("<2I6Q8I")
INIT_ANSWER = struct.Struct("<4I2H2I2H8I")
READ = struct.Struct("<2QI")  # file handle, position, size
WRITE = struct.Struct("<2Q2IQ2I")
WRITTEN = struct.Struct("<2I")
STATFS = struct.Struct("<5Q10I")
NAMED = struct.Struct("<2QII")  # of READDIR: number, position of the next one, length of the name, type
FORGET = struct.Struct("<Q")
FORGET_ONE = struct.Struct("<2Q")
FORGET_COUNT = struct.Struct("<2I")
MODE = struct.Struct("<2I")
CREATE = struct.Struct("<4I")
RENAME = struct.Struct("<Q")
RENAME2 = struct.Struct("<Q2I")


class Server:
    """Answer the kernel's requests. Each handler gets a node's number and the request's bytes."""

    def __init__(self, device):
        self._device = device
        self.files = ForgetfulFiles()
        self._nodes = {ROOT: self.files.root}  # those that the kernel knows, by number
        self._lookups = {}  # how often the kernel was told of each
        self._handlers = {
            1: self._lookup, 2: self._forget, 3: self._get_attributes, 4: self._set_attributes, 9: self._make_directory,
            10: self._remove, 11: self._remove, 12: self._rename, 14: self._open, 15: self._read, 16: self._write,
            17: self._statfs, 18: self._done, 20: self._sync, 25: self._done, 26: self._init, 27: self._open,
            28: self._read_directory, 29: self._done, 30: self._sync, 35: self._create, 36: self._forget_nothing,
            42: self._batch_forget, 45: self._rename2,
        }  # fmt: skip

    def cut_power(self):
        self.files.cut_power()
        self._nodes = {ROOT: self.files.root}
        self._lookups.clear()

    def serve(self, request):
        _, opcode, unique, number, *_ = HEADER.unpack_from(request)
        handler = self._handlers.get(opcode)
        try:
            if handler is None:
                raise OSError(errno.ENOSYS, "not served")
            answer, error = handler(number, request[HEADER.size :]), 0
        except OSError as failure:
            answer, error = b"", failure.errno
        if answer is not NO_ANSWER:
            os.writev(self._device, (ANSWER.pack(ANSWER.size + len(answer), -error, unique), answer))

    def _node(self, number):
        if number not in self._nodes:
            raise OSError(errno.ESTALE, "the node is of before a power cut")
        return self._nodes[number]

    # --- nodes and names -----------------------------------------------------------------------------------------

    def _init(self, _, body):
        flags = struct.unpack_from("<4I", body)[3] & (ASYNC_READ | BIG_WRITES | MAX_PAGES)
        pages = WRITE_BYTES_MAX // PAGE_BYTES
        return INIT_ANSWER.pack(*VERSION, 0, flags, 0, 0, WRITE_BYTES_MAX, 1, pages, 0, *bytes(8))

    def _lookup(self, number, body):
        return self._told(self._node(number).find(_name(body)))

    def _told(self, node):
        """Return a node as the kernel learns it."""
        self._nodes[node.number] = node
        self._lookups[node.number] = self._lookups.get(node.number, 0) + 1
        return ENTRY.pack(node.number, 0, 0, 0, 0, 0) + _attributes(node)

    def _forget(self, number, body):
        self._forget_lookups(number, FORGET.unpack_from(body)[0])

    def _batch_forget(self, _, body):
        for at in range(FORGET_COUNT.unpack_from(body)[0]):
            self._forget_lookups(*FORGET_ONE.unpack_from(body, FORGET_COUNT.size + at * FORGET_ONE.size))

    def _forget_lookups(self, number, lookups):
        if number in self._lookups:
            self._lookups[number] -= lookups
            if self._lookups[number] <= 0:
                del self._lookups[number], self._nodes[number]

    def _forget_nothing(self, *_):
        return NO_ANSWER

    def _get_attributes(self, number, _):
        return ATTRIBUTES_VALID.pack(0, 0, 0) + _attributes(self._node(number))

    def _set_attributes(self, number, body):
        node = self._node(number)
        valid, _, _, size, _, _, mtime, _, _, mtime_ns, _, mode, *_ = SET_ATTRIBUTES.unpack_from(body)
        if valid & SETS_SIZE:
            node.truncate(size, time.time_ns())
        if valid & SETS_MODE:
            node.mode = mode & 0o7777
        if valid & SETS_MTIME_NOW:
            node.modified_ns = time.time_ns()
        elif valid & SETS_MTIME:
            node.modified_ns = mtime * 1_000_000_000 + mtime_ns
        return self._get_attributes(number, body)

    def _make_directory(self, number, body):
        mode, _ = MODE.unpack_from(body)
        return self._told(self._made(Directory, number, mode, body[MODE.size :]))

    def _made(self, kind, number, mode, name):
        return self.files.create(kind, self._node(number), _name(name), mode, time.time_ns())

    def _remove(self, number, body):
        self.files.remove(self._node(number), _name(body), time.time_ns())
        return b""

    def _rename(self, number, body, head=RENAME):
        source, target = bytes(body[head.size :]).split(b"\0")[:2]
        target_directory = self._node(head.unpack_from(body)[0])
        self.files.rename(self._node(number), source, target_directory, target, time.time_ns())
        return b""

    def _rename2(self, number, body):
        if RENAME2.unpack_from(body)[1]:
            raise OSError(errno.EINVAL, "no flag of renameat2 is served")
        return self._rename(number, body, RENAME2)

    # --- content -------------------------------------------------------------------------------------------------

    def _open(self, number, _):
        self._node(number)
        return OPENED.pack(number, 0, 0)

    def _create(self, number, body):
        flags, mode, *_ = CREATE.unpack_from(body)
        name = body[CREATE.size :]
        node = self._node(number).nodes.get(_name(name))
        if node is None:
            node = self._made(File, number, mode, name)
        elif flags & os.O_EXCL:
            raise OSError(errno.EEXIST, "the name is there")
        return self._told(node) + OPENED.pack(node.number, 0, 0)

    def _read(self, number, body):
        _, position, size = READ.unpack_from(body)
        return memoryview(self._node(number).data)[position : position + size].tobytes()

    def _write(self, number, body):
        _, position, size, *_ = WRITE.unpack_from(body)
        self._node(number).write(position, body[WRITE.size : WRITE.size + size], time.time_ns())
        return WRITTEN.pack(size, 0)

    def _sync(self, number, _):
        self._node(number).sync()
        return b""

    def _done(self, *_):
        return b""

    def _read_directory(self, number, body):
        _, position, size = READ.unpack_from(body)
        out = bytearray()
        for at, (name, node) in enumerate(sorted(self._node(number).nodes.items())[position:], position + 1):
            entry = NAMED.pack(node.number, at, len(name), node.kind >> 12) + name
            entry += bytes(-len(entry) % 8)
            if len(out) + len(entry) > size:
                break
            out += entry
        return out

    def _statfs(self, *_):
        blocks = DISK_BLOCKS
        return STATFS.pack(blocks, blocks, blocks, blocks, blocks, PAGE_BYTES, NAME_BYTES_MAX, PAGE_BYTES, 0, *bytes(6))


def _name(body):
    return bytes(body).partition(b"\0")[0]


def _attributes(node):
    seconds, ns = divmod(node.modified_ns, 1_000_000_000)
    links = 2 if isinstance(node, Directory) else 1
    owner = os.getuid(), os.getgid()
    blocks = -(-node.size // BLOCK_BYTES)
    times = seconds, seconds, seconds, ns, ns, ns
    return ATTRIBUTES.pack(
        node.number, node.size, blocks, *times, node.kind | node.mode, links, *owner, 0, PAGE_BYTES, 0
    )


def mount(directory):
    """Mount the file system; return the descriptor on which the kernel asks. Raise OSError."""
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
    library = ctypes.CDLL(None, use_errno=True)
    if library.mount(b"forgetful", os.fsencode(directory), b"fuse.forgetful", MS_NOSUID_NODEV, options.encode()):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), directory)
    return device


def main(directory):
    device = mount(directory)
    print("mounted", flush=True)
    server = Server(device)
    buffer = bytearray(BUFFER_BYTES)
    while True:
        ready, _, _ = select.select([device, sys.stdin], [], [])
        if device in ready:
            size = os.readv(device, (buffer,))
            server.serve(memoryview(buffer)[:size])
        elif sys.stdin in ready:
            line = sys.stdin.readline()
            if not line:
                return
            server.cut_power()
            print("cut", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
