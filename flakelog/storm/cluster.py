"""Places that a topology keeps data in, looked at before it goes to a cluster, whose tasks move between machines."""

from pathlib import PurePath

from partition_manager.source import KAFKA, ZOOKEEPER
from spout.log_spout import LogSpout
from spout.once import OncePerMessage
from spout.topology import Plan, TopologyError

_OWN_DIRECTORY = "each of Storm's workers has a working directory of its own"
_IN_MEMORY = ":memory:"


def check_for_cluster(plan: Plan) -> list[str]:
    """Return a warning for each component whose data is in files that other machines lack.

    Raise TopologyError, naming the component, for a path that leads to another directory in each worker.
    """
    warnings = []
    for node in plan.spouts:
        made = node.make()
        if isinstance(made, LogSpout) and made.store != KAFKA and not made.store.startswith(ZOOKEEPER):
            fact = f"spout {node.name!r} keeps its progress in the directory {made.store}"
            better = 'store="kafka" or store="zookeeper://host:port" is in reach of all of them'
            if not PurePath(made.store).is_absolute():
                raise TopologyError(f"{fact}, and {_OWN_DIRECTORY}: {better}, and so is an absolute path they share")
            warnings.append(f"{fact}: a task that moves to a machine without it begins anew; {better}")
    for bolt in plan.bolts:
        state = bolt.make()
        if isinstance(state, OncePerMessage) and str(state.database) != _IN_MEMORY:
            fact = f"bolt {bolt.name!r} keeps its state in the file {state.database}"
            if not state.database.is_absolute():
                raise TopologyError(f"{fact}, and {_OWN_DIRECTORY}: give an absolute path")
            warnings.append(f"{fact}: a task that moves to another machine does not find it there")
    return warnings
