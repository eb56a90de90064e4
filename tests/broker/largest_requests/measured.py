"""The execution of one of the largest requests, turn by turn."""

from tests.broker.any_api import KEYS, EngineLine, World, answer_of, request_of
from tests.broker.engine_client import EngineBroker

FEW = {
    "group_initial_rebalance_delay_ms": 0, "offsets_topic_num_partitions": 1, "transaction_state_log_num_partitions": 1,
    "auto_create_topics_max": 4,
}  # fmt: skip
AHEAD_MS = 3_600_000  # the ids of some requests for many partitions are more than the clock has


class Execution:
    """A broker that was prepared for a case with this number of items, and the request of the case.

    `turns` has what `measure` returned for each turn and each tick of the request.
    """

    def __init__(self, case, number, storage=None, **settings):
        settings = FEW | settings
        self.broker = EngineBroker(storage, max_ahead_ms=AHEAD_MS, **settings)
        self._world = World(EngineLine(self.broker), case.api, case.version)
        self._case = case
        self.frame = request_of(KEYS[case.api], case.version, 1, case.make(self._world, number))
        self.turns = []

    def run(self, measure):
        """Send the request and return its answer. `measure(call)` calls each turn and returns what it took."""
        engine = self.broker.engine
        for name in ("execute", "tick"):
            setattr(engine, name, self._measured(getattr(engine, name), measure))
        self._world.line.send(self.frame)
        return answer_of(KEYS[self._case.api], self._case.version, self._world.line.receive())[1]

    def _measured(self, verb, measure):
        return lambda now: self.turns.append(measure(lambda: verb(now)))
