"""The new leader of a partition, in answers of Produce (v10 up) and Fetch (v16 up) (KIP-951).

An answer with NOT_LEADER_OR_FOLLOWER or FENCED_LEADER_EPOCH has the leader's id and epoch in a tag of the partition.
The addresses of all leaders that it names are in a tag of the whole answer.

    CurrentLeader  leader id i32 | leader epoch i32 | tags
    NodeEndpoints  number of nodes | each: node id i32 | host | port i32 | rack (nullable) | tags
"""

import struct
from collections.abc import Iterable
from typing import NamedTuple

from broker.wire.primitives import I32, Buffer, length, read_count, read_string, skip_tags, string
from broker.wire.primitives import tags as tag_section

NODE_ENDPOINTS = 0  # the tag of the addresses, at the top level of both answers

_LEADER = struct.Struct(">ii")
_NODE_BYTES_MIN = 11


class NodeEndpoint(NamedTuple):
    """The address of a broker, on the listener that the request came by."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class CurrentLeader(NamedTuple):
    """The leader of a partition, -1 if it has none, and its epoch; no endpoint if the leader's address is unknown."""

    leader_id: int
    leader_epoch: int
    endpoint: NodeEndpoint | None = None


def leader_payload(leader: CurrentLeader) -> bytes:
    """Return the payload of a partition's tag."""
    return _LEADER.pack(leader.leader_id, leader.leader_epoch) + b"\0"


def read_leader(payload: Buffer) -> CurrentLeader:
    """Return the leader without its address, which the end of the answer has."""
    return CurrentLeader(*_LEADER.unpack_from(payload))


def endpoint_tags(leaders: Iterable[CurrentLeader]) -> bytes:
    """Return the tags at the end of an answer: the addresses of the leaders, each node once."""
    nodes = {leader.endpoint.node_id: leader.endpoint for leader in leaders if leader.endpoint is not None}
    if not nodes:
        return b"\0"
    out = [length(len(nodes), True)]
    for node_id, host, port, rack in nodes.values():
        out += (I32.pack(node_id), string(host, True), I32.pack(port), string(rack, True), b"\0")
    return tag_section({NODE_ENDPOINTS: b"".join(out)})


def read_endpoints(payload: Buffer) -> dict[int, NodeEndpoint]:
    """Return the addresses by node id."""
    number, position = read_count(payload, 0, True, _NODE_BYTES_MIN)
    nodes = {}
    for _ in range(number):
        (node_id,) = I32.unpack_from(payload, position)
        host, position = read_string(payload, position + 4, True)
        (port,) = I32.unpack_from(payload, position)
        rack, position = read_string(payload, position + 4, True)
        position = skip_tags(payload, position)
        nodes[node_id] = NodeEndpoint(node_id, host or "", port, rack)
    return nodes
