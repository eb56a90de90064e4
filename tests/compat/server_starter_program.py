"""The process of a `Starter`: for each order from stdin, a Unix socket, it forks a `flakelog`, and tells how that ends.

An order is the length of its JSON in 4 bytes, with three descriptors: stdout, stderr, and where the exit code goes. The
JSON has the arguments, the directory and the environment. The answer is the fork's pid in 4 bytes.
"""

import json
import os
import select
import signal
import socket
import sys
import time
from importlib import import_module

# With what they import, these are all modules that a start imports. None of them makes a reactor.
MODULES = (
    "broker.net.reactor", "flakelog.__main__", "flakelog.cli", "flakelog.commands.server",
    "flakelog.processes.messages", "flakelog.server.broker_parts", "flakelog.server.left_out_brokers",
    "flakelog.server.starter", "flakelog.server_log", "flakelog.service_manager",
)  # fmt: skip


def main():
    from flakelog import garbage

    garbage.pause()
    for name in MODULES:
        import_module(name)
    assert "twisted.internet.reactor" not in sys.modules, "forks would share the reactor's descriptors"
    order = _serve(socket.socket(fileno=0))
    if order is not None:
        _become(**order)
        from flakelog.__main__ import main as flakelog

        flakelog()


def _serve(orders):
    """Fork for each order until there are no more. Return the order in the fork, and None at the end."""
    woken, waking = os.pipe()
    os.set_blocking(waking, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waking)
    exits = {}  # pid -> where its exit code goes
    while True:
        readable, _, _ = select.select([orders, woken], [], [])
        if woken in readable:
            os.read(woken, 4096)
            _reap(exits)
        if orders in readable:
            header, descriptors, _, _ = socket.recv_fds(orders, 4, 3)
            if not header:
                return None
            order = json.loads(orders.recv(int.from_bytes(header, "big"), socket.MSG_WAITALL))
            stdout, stderr, exit_code = descriptors
            if not (pid := os.fork()):
                return order | {"stdout": stdout, "stderr": stderr}
            os.close(stdout)
            os.close(stderr)
            exits[pid] = exit_code
            orders.sendall(pid.to_bytes(4, "big"))


def _reap(exits):
    """Tell the exit codes of all forks that have ended."""
    for pid, exit_code in [*exits.items()]:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            os.write(exit_code, b"%d" % os.waitstatus_to_exitcode(status))
            os.close(exits.pop(pid))


def _become(arguments, cwd, env, stdout, stderr):
    """Make this process as if Python had just been started with these arguments."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    os.closerange(3, max(map(int, os.listdir("/dev/fd"))) + 1)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    sys.argv[1:] = arguments


if __name__ == "__main__":
    main()
