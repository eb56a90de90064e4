"""The administrator of a simulated cluster: it makes, grows, deletes and configures topics."""

from broker.wire.errors import ErrorCode
from tests.broker.engine_client import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS, INCREMENTAL_ALTER_CONFIGS
from tests.simulation.cluster_clients import STABLE, TOPICS, Ask, Client


class Admin(Client):
    """A client that makes, grows, deletes and configures topics; now and then it asks a broker that cannot."""

    def act(self):
        yield from self.refresh(*TOPICS)
        target = self.controller_id if self.random.random() < 0.9 else self.any_broker()
        if target not in self.world.machines:
            return
        topic = self.random.choice(TOPICS)
        kind = self.random.choice(("create", "create", "create", "grow", "delete", "delete", "configure"))
        if (kind == "delete" and topic == STABLE) or (kind == "grow" and topic not in self.topics):
            kind = "create"
        if kind == "delete":
            answer = yield Ask(target, DELETE_TOPICS, 5, {"topic_names": [topic], "timeout": 10_000})
        elif kind == "grow":
            growth = {"name": topic, "count": min(6, len(self.topics[topic][1]) + 1), "assignments": None}
            answer = yield Ask(target, CREATE_PARTITIONS, 3, {"topics": [growth], "timeout": 10_000})
        elif kind == "configure":
            config = {"name": "segment.bytes", "config_operation": 0, "value": str(self.random.randint(10_000, 90_000))}
            resource = {"resource_type": 2, "resource_name": topic, "configs": [config]}
            answer = yield Ask(self.any_broker(), INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource]})
        else:
            configs = [{"name": "segment.bytes", "value": str(self.random.randint(10_000, 90_000))}]
            numbers = {"num_partitions": self.random.randint(1, self.world.partitions_max)}
            numbers["replication_factor"], more = self.world.new_copies()
            fields = {"name": topic, "assignments": [], "configs": self.random.choice((configs, [])) + more, **numbers}
            request = {"topics": [fields], "timeout": 10_000, "validate_only": False}
            answer = yield Ask(target, CREATE_TOPICS, 7, request)
        self.world.counts[f"{kind} {'no answer' if answer is None else self.code(answer)}"] += 1

    def code(self, answer):
        parts = [getattr(answer, name, None) for name in ("topics", "responses", "results")]
        return ErrorCode(next(part for part in parts if part)[0].error_code).name
