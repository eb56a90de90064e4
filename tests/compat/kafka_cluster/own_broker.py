"""A broker of ours with one listener for clients and brokers, as a broker of Kafka has it by default."""

from tests.compat.cluster_servers import ONE_COPY
from tests.compat.server_process import ServerProcess

SETTINGS = {
    "auto.create.topics.enable": "false",
    "flakelog.http.listener": "",
    "flakelog.ids.listener": "",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "zookeeper.session.timeout.ms": "6000",
    **ONE_COPY,
}


def own_broker(directory, broker_id, zookeeper, settings=None, **more):
    """Return a server that is not started yet. It keeps its port and its directory over restarts."""
    own = {"broker.id": str(broker_id), "zookeeper.connect": zookeeper}
    return ServerProcess(directory, SETTINGS | own | (settings or {}), **more).keep_ports()
