"""The administrator of a simulated cluster: it makes, grows, deletes and configures topics."""

from broker.wire.errors import ErrorCode
from tests.broker.engine_client import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS, INCREMENTAL_ALTER_CONFIGS
from tests.simulation.cluster_clients import STABLE, TOPICS, Ask, Client

TIMEOUT_MS = 10_000


class Admin(Client):
    """A client that administrates topics; now and then it asks a broker that cannot."""

    kinds = ("create", "create", "create", "grow", "delete", "delete", "configure")

    def act(self):
        yield from self.refresh(*TOPICS)
        target = self.controller_id if self.random.random() < 0.9 else self.any_broker()
        if target not in self.world.machines:
            return
        topic = self.random.choice(TOPICS)
        kind = self.random.choice(self.kinds)
        if (kind == "delete" and topic == STABLE) or (kind not in ("create", "delete") and topic not in self.topics):
            kind = "create"
        request = getattr(self, kind.replace(" ", "_"))(topic, target)
        if request is not None:
            answer = yield request
            self.world.counts[f"{kind} {'no answer' if answer is None else self.code(answer)}"] += 1

    def create(self, topic, target):
        configs = [{"name": "segment.bytes", "value": str(self.random.randint(10_000, 90_000))}]
        numbers = {"num_partitions": self.random.randint(1, self.world.partitions_max)}
        numbers["replication_factor"], more = self.world.new_copies()
        fields = {"name": topic, "assignments": [], "configs": self.random.choice((configs, [])) + more, **numbers}
        return Ask(target, CREATE_TOPICS, 7, {"topics": [fields], "timeout": TIMEOUT_MS, "validate_only": False})

    def delete(self, topic, target):
        return Ask(target, DELETE_TOPICS, 5, {"topic_names": [topic], "timeout": TIMEOUT_MS})

    def grow(self, topic, target):
        growth = {"name": topic, "count": min(6, len(self.topics[topic][1]) + 1), "assignments": None}
        return Ask(target, CREATE_PARTITIONS, 3, {"topics": [growth], "timeout": TIMEOUT_MS})

    def configure(self, topic, target):
        return self.set(topic, "segment.bytes", self.random.randint(10_000, 90_000))

    def set(self, topic, name, value):
        """Return the request that any broker takes for a setting of a topic."""
        config = {"name": name, "config_operation": 0, "value": str(value)}
        resource = {"resource_type": 2, "resource_name": topic, "configs": [config]}
        return Ask(self.any_broker(), INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource]})

    def code(self, answer):
        parts = [getattr(answer, name, None) for name in ("topics", "responses", "results")]
        return ErrorCode(next(part for part in parts if part)[0].error_code).name
