"""Blocks of 1,000 producer ids, which the controller gives to brokers (Kafka's ZkProducerIdManager).

The newest block stands in /latest_producer_id_block. A Set names the version that was read, so two controllers cannot
give away one block. A block whose answer got lost is read again, and given only if it is the one that was proposed and
the controller epoch is still the same: a later controller may have given the same block to the same broker.
"""

from broker.cluster.controller_context import ControllerContext
from broker.cluster.documents import CONTROLLER_EPOCH, PRODUCER_ID_BLOCK, ProducerIdBlock
from broker.cluster.procedure import ControllerMoved, Procedure, failed_index, read, read_node, write
from broker.wire.errors import ApiError, ErrorCode
from coordination.port import (
    BadVersion,
    ConnectionLost,
    CoordinationError,
    Create,
    Get,
    Multi,
    Node,
    NodeExists,
    NoNode,
    Set,
)

BLOCK_SIZE = 1000
LAST_PRODUCER_ID = (1 << 63) - 1


def allocate_block(context: ControllerContext, broker_id: int) -> Procedure[ProducerIdBlock]:
    """Take the next block for a broker."""
    while True:
        node = yield from _read()
        newest = _last_of(node)
        if newest > LAST_PRODUCER_ID - BLOCK_SIZE:
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "All producer ids were given away")
        block = ProducerIdBlock(broker_id, newest + 1, newest + BLOCK_SIZE)
        operation = Set(PRODUCER_ID_BLOCK, block.encode(), node.version)
        outcome = yield from write(Multi((context.fence(), operation)))
        if not isinstance(outcome, CoordinationError):
            return block
        failed_index(outcome)
        if isinstance(outcome, ConnectionLost) and (yield from _is_written(context, operation)):
            return block


def _is_written(context: ControllerContext, operation: Set) -> Procedure[bool]:
    written, epoch = yield from read([Get(PRODUCER_ID_BLOCK), Get(CONTROLLER_EPOCH)])
    if not isinstance(epoch, Node) or epoch.version != context.epoch_version:
        raise ControllerMoved("another broker has raised the controller epoch")
    return isinstance(written, Node) and (written.version, written.data) == (operation.version + 1, operation.data)


def skip_used_ids(broker_id: int, first_unused: int) -> Procedure[None]:
    """Let the next block begin at `first_unused` or above.

    A data directory that gave producer ids away opens its cluster with this: a batch of a producer whose id is given
    twice would be taken for a duplicate, and lost.
    """
    while True:
        node = yield from _read()
        newest = _last_of(node)
        if newest >= first_unused - 1:
            return
        block = ProducerIdBlock(broker_id, newest + 1, first_unused - 1)
        outcome = yield from write(Set(PRODUCER_ID_BLOCK, block.encode(), node.version))
        if isinstance(outcome, CoordinationError) and not isinstance(outcome, ConnectionLost | BadVersion | NoNode):
            raise outcome


def _read() -> Procedure[Node]:
    while True:
        node = yield from read_node(PRODUCER_ID_BLOCK)
        if node is not None:
            return node
        outcome = yield from write(Create(PRODUCER_ID_BLOCK))
        if isinstance(outcome, CoordinationError) and not isinstance(outcome, NodeExists | ConnectionLost):
            raise outcome


def _last_of(node: Node) -> int:
    return ProducerIdBlock.decode(node.data).last if node.data else -1
