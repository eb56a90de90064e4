"""Several brokers on one machine: a parent process that starts them, watches them and starts them again.

    plan.py        the settings and directories of each broker, from those of the parent
    supervisor.py  the core of the parent: states of the children, pauses, time limits
    parent.py      its shell: processes, pipes, signals, shared sockets, systemd
    child.py       the child's side, in the reactor of a broker: beats, readiness, the end of the parent
    messages.py    lines between both, and the descriptors that a child inherits

The parent parses no request. `flakelog server --processes N` runs it (flakelog/commands/server_processes.py).
"""
