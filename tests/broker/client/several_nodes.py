"""Three brokers of Kafka's protocol without sockets. A test sets who leads a partition, and which brokers are down.

    nodes = Nodes({("t", 0): 1, ("t", 1): 2})
    nodes.run(nodes.core.list_offsets([("t", 0), ("t", 1)], LATEST))
"""

from broker.client.core import Address, ClientCore, carry_out
from broker.client.errors import Unreachable
from broker.record.records import BatchRecord, encode_batch
from broker.wire import cold, fetch
from broker.wire.errors import ErrorCode
from broker.wire.fetch import FetchedPartition, FetchResponse

FETCH, LIST_OFFSETS, METADATA, FIND_COORDINATOR, API_VERSIONS, CREATE_TOPICS = 1, 2, 3, 10, 18, 19
VERSIONS = {
    **{FETCH: (4, 12), LIST_OFFSETS: (1, 5), METADATA: (0, 12)},
    **{FIND_COORDINATOR: (0, 3), API_VERSIONS: (0, 3), CREATE_TOPICS: (0, 7)},
}
NAMES = {
    **{FETCH: "fetch", LIST_OFFSETS: "list offsets", METADATA: "metadata", API_VERSIONS: "versions"},
    **{FIND_COORDINATOR: "find coordinator", CREATE_TOPICS: "create topics"},
}
NOBODY = -1
BOOTSTRAP = Address("bootstrap", 9092)


def address(node):
    return Address(f"node-{node}", 9092)


class Nodes:
    """Brokers 1 to 3, and a client's core. `leaders` maps a partition to its leader's number, or to NOBODY.

    `epochs` maps a partition to its leader epoch, `replicas` to the brokers that have it, and `topic_ids` a topic to
    its id. A broker in `late` names the leader and the epoch of `late` instead. `controllers` maps a broker to the
    controller that it names; the controller is broker `controller`. `named` lists each epoch in a Fetch or ListOffsets
    as (node, epoch).
    `ends` maps a partition to its log's end; the others end at 10. `errors` maps a partition to the code that all
    brokers answer. Brokers in `down` refuse connections. `requests` lists each request as (node, name), except
    ApiVersions requests that were answered.
    """

    def __init__(self, leaders, ends=()):
        self.core = ClientCore([BOOTSTRAP])
        self.leaders = dict(leaders)
        self.epochs, self.topic_ids, self.late, self.named = {}, {}, {}, []
        self.replicas = {}
        self.ends = dict(ends)
        self.down = set()
        self.errors = {}
        self.controller, self.controllers = 1, {}
        self.requests = []
        self.waits_ms = []

    def run(self, steps):
        """Carry out an operation; return its result."""
        return carry_out(steps, self.ask)

    def ask(self, exchange):
        node = 1 if exchange.address == BOOTSTRAP else int(exchange.address.host.removeprefix("node-"))
        if exchange.api_key != API_VERSIONS or node in self.down:
            self.requests.append((node, NAMES[exchange.api_key]))
        if node in self.down:
            self.core.forget(exchange.address)
            raise Unreachable(str(exchange.address), "refused")
        answer = {
            **{API_VERSIONS: self.versions, METADATA: self.metadata, LIST_OFFSETS: self.list_offsets},
            **{CREATE_TOPICS: self.create_topics, FIND_COORDINATOR: self.find_coordinator},
        }
        body = memoryview(exchange.body)
        return memoryview(answer.get(exchange.api_key, self.fetch)(node, exchange.version, body))

    def versions(self, node, version, body):
        keys = [{"api_key": key, "min_version": low, "max_version": high} for key, (low, high) in VERSIONS.items()]
        return cold.encode(API_VERSIONS, version, "response", {"error_code": 0, "api_keys": keys})

    def metadata(self, node, version, body):
        requested = cold.decode(METADATA, version, "request", body, 0, version).newest.topics
        topic_names = {name for name, _ in self.leaders}
        topics = []
        for name in sorted(topic_names) if requested is None else [topic.name for topic in requested]:
            partitions = [self.partition(node, key, leader) for key, leader in self.leaders.items() if key[0] == name]
            code = ErrorCode.NONE if name in topic_names else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            topic = {"name": name, "is_internal": False, "error_code": code, "partitions": partitions}
            topics.append(topic | {"topic_id": self.topic_ids.get(name)})
        brokers = [{"node_id": node_id, "host": address(node_id).host, "port": 9092} for node_id in (1, 2, 3)]
        controller = self.controllers.get(node, self.controller)
        fields = {"brokers": brokers, "cluster_id": "c", "controller_id": controller, "topics": topics}
        return cold.encode(METADATA, version, "response", fields)

    def create_topics(self, node, version, body):
        code = ErrorCode.NONE if node == self.controller else ErrorCode.NOT_CONTROLLER
        return cold.encode(CREATE_TOPICS, version, "response", {"topics": [{"name": "t", "error_code": code}]})

    def find_coordinator(self, node, version, body):
        fields = {"error_code": 0, "node_id": 3, "host": address(3).host, "port": 9092}
        return cold.encode(FIND_COORDINATOR, version, "response", fields)

    def partition(self, node, key, leader):
        leader, epoch = self.late.get(node, {}).get(key, (leader, self.epochs.get(key, -1)))
        code = ErrorCode.LEADER_NOT_AVAILABLE if leader == NOBODY else ErrorCode.NONE
        row = {"partition_index": key[1], "leader_id": leader, "leader_epoch": epoch, "error_code": code}
        return row | {"replica_nodes": self.replicas.get(key, [])}

    def error(self, node, key, epoch):
        self.named.append((node, epoch))
        if key in self.errors or self.leaders.get(key) != node:
            return self.errors.get(key, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if epoch == -1 or epoch == self.epochs.get(key, -1):
            return ErrorCode.NONE
        is_older = epoch < self.epochs.get(key, -1)
        return ErrorCode.FENCED_LEADER_EPOCH if is_older else ErrorCode.UNKNOWN_LEADER_EPOCH

    def list_offsets(self, node, version, body):
        topics = []
        for topic in cold.decode(LIST_OFFSETS, version, "request", body, 0, version).newest.topics:
            partitions = []
            for partition in topic.partitions:
                key = topic.name, partition.partition_index
                code = self.error(node, key, partition.current_leader_epoch)
                offset = 0 if partition.timestamp == -2 else self.ends.get(key, 10)
                offset = -1 if code else offset
                answer = {"partition_index": partition.partition_index, "error_code": code, "offset": offset}
                partitions.append(answer)
            topics.append({"name": topic.name, "partitions": partitions})
        return cold.encode(LIST_OFFSETS, version, "response", {"topics": topics})

    def fetch(self, node, version, body):
        request = fetch.decode_request(version, body, 0)
        self.waits_ms.append(request.max_wait_ms)
        answers = []
        for partition in request.partitions:
            key = partition.topic, partition.partition
            end, code = self.ends.get(key, 10), self.error(node, key, partition.current_leader_epoch)
            offset = partition.fetch_offset
            number = 0 if code else end - offset
            records = [BatchRecord(at, 0, None, b"v") for at in range(number)]
            data = bytes(encode_batch(records, base_timestamp_ms=0, base_offset=offset)) if records else b""
            answers.append(FetchedPartition(*key, code, end, end, 0, records=data))
        return b"".join(fetch.encode_response(version, FetchResponse(answers)))
