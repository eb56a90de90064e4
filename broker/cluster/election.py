"""The election of the controller: a broker that creates /controller wins, and raises the epoch in one Multi (rule E1).

An answer that got lost is read before the Multi is repeated: /controller belongs to this session if it was applied.
/controller is watched from the first read on, so a broker that loses hears when to try again.
"""

from typing import NamedTuple

from broker.cluster.documents import (
    CONTROLLER,
    CONTROLLER_EPOCH,
    decode_controller,
    decode_epoch,
    encode_controller,
    encode_epoch,
)
from broker.cluster.procedure import Procedure, read_node, write
from coordination.port import CoordinationError, Create, Multi, Node, Set


class Won(NamedTuple):
    """This broker is the controller, with an epoch and the version of /controller_epoch that belongs to it."""

    epoch: int
    epoch_version: int


class Lost(NamedTuple):
    """Another broker is the controller."""

    controller_id: int


def elect(broker_id: int, session_id: int, timestamp_ms: int) -> Procedure[Won | Lost]:
    """Become the controller unless another broker is."""
    while True:
        controller = yield from read_node(CONTROLLER, watch=True)
        epoch = yield from _read_epoch()
        if controller is not None:
            if controller.owner == session_id:
                return Won(decode_epoch(epoch.data), epoch.version)
            return Lost(decode_controller(controller.data))
        next_epoch = decode_epoch(epoch.data) + 1
        multi = Multi(
            (
                Create(CONTROLLER, encode_controller(broker_id, timestamp_ms), ephemeral=True),
                Set(CONTROLLER_EPOCH, encode_epoch(next_epoch), epoch.version),
            )
        )
        outcome = yield from write(multi)
        if not isinstance(outcome, CoordinationError):
            # Watch the node, whose deletion is a reason to resign.
            controller = yield from read_node(CONTROLLER, watch=True)
            if controller is not None and controller.owner == session_id:
                return Won(next_epoch, epoch.version + 1)


def is_own(session_id: int) -> Procedure[bool]:
    """Return True if /controller belongs to this session; watch it."""
    controller = yield from read_node(CONTROLLER, watch=True)
    return controller is not None and controller.owner == session_id


def _read_epoch() -> Procedure[Node]:
    while True:
        node = yield from read_node(CONTROLLER_EPOCH)
        if node is not None:
            return node
        yield from write(Create(CONTROLLER_EPOCH, encode_epoch(0)))
