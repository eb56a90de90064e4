"""A broker follows the settings of all entities (Kafka's DynamicConfigManager), whatever happens to its session."""

import random
from uuid import UUID

import pytest

from broker.cluster.change_watch import CHANGE_EXPIRATION_MS
from broker.cluster.config_entity import (
    broker_entity,
    client_entity,
    decode_entity_path,
    topic_entity,
    user_client_entity,
    user_entity,
)
from broker.cluster.config_watch import LAG_MAX_MS, LOOK_AGAIN_MS, ConfigWatch
from broker.cluster.documents import (
    CONFIG_CHANGES,
    DamagedDocument,
    Topic,
    decode_config,
    encode_config,
    encode_config_change,
    topic_path,
)
from broker.cluster.entity_configs import CONFIG_CHANGE, write_config
from broker.now import Now
from broker.waiting.pending import Pending
from coordination.memory import MemoryCoordinator
from coordination.port import ANY_VERSION, CoordinationError, Create, Delete, Get, Set
from tests.broker.cluster.procedures import run
from tests.broker.cluster.test_entity_configs import change_nodes, started


class Watcher:
    """A broker: its session, its watch, and the settings that the updates told it."""

    def __init__(self, ensemble):
        self.coordinator = MemoryCoordinator(ensemble)
        self.watch = ConfigWatch(Pending())
        self.settings = {}
        self.updates = []
        self.now_ms = 0
        self._session_id = None
        self._outcomes = []

    @property
    def now(self):
        return Now(self.now_ms, 0)

    def take_events(self):
        for event in self.coordinator.take_events():
            self.watch.notified(event, self.now)
        if self._session_id != self.coordinator.session_id and self.coordinator._connected:
            self._session_id = self.coordinator.session_id
            self.watch.begin(self.now)

    def step(self):
        """Execute the operations of the watch, or pass it the last outcomes. Return False if there are none.

        In the model other sessions act between the two steps.
        """
        self.take_events()
        self.watch.tick(self.now)
        outcomes, self._outcomes = self._outcomes, []
        for operation, outcome in outcomes:
            self.watch.completed(operation, outcome, self.now)
        if not outcomes:
            for operation in self.watch.take_operations():
                try:
                    self._outcomes.append((operation, self.coordinator.execute(operation)))
                except CoordinationError as error:
                    self._outcomes.append((operation, error))
        for entity, settings in self.watch.take_updates():
            self.updates.append((entity, settings))
            self.settings[entity] = settings
        return bool(outcomes or self._outcomes)

    def settle(self):
        """Go on until the watch is idle, and has no event to take."""
        while self.step() or not self.watch.is_idle:
            self.now_ms = self.watch.next_deadline_ms() or self.now_ms

    def take(self):
        self.settle()
        updates, self.updates = self.updates, []
        return updates


def write(ensemble, entity, **settings):
    run(MemoryCoordinator(ensemble), write_config(entity, settings))


def make_topic(ensemble, topic, topic_id=None, **settings):
    """Create a topic as a controller does: its settings first, if it has any."""
    coordinator = MemoryCoordinator(ensemble)
    if settings:
        coordinator.execute(Create(topic_entity(topic).path, encode_config(settings)))
    coordinator.execute(Create(topic_path(topic), Topic(topic_id, {}).encode()))


def test_first_read_tells_all_entities():
    ensemble = started()
    write(ensemble, topic_entity("t"), a="1")
    write(ensemble, user_client_entity(None, "c"), b="2")
    watcher = Watcher(ensemble)
    assert not watcher.watch.has_read_all
    watcher.settle()
    assert watcher.watch.has_read_all and watcher.watch.problem is None
    assert watcher.settings == {
        topic_entity("t"): {"a": "1"},
        user_entity(None): {},
        user_client_entity(None, "c"): {"b": "2"},
    }


def test_changes_are_told_in_the_order_of_their_numbers():
    ensemble = started()
    watcher = Watcher(ensemble)
    watcher.settle()
    for entity in (topic_entity("t"), broker_entity(None), client_entity("c")):
        write(ensemble, entity, a="1")
    write(ensemble, topic_entity("t"), a="2")
    assert watcher.take() == [
        (topic_entity("t"), {"a": "2"}),
        (broker_entity(None), {"a": "1"}),
        (client_entity("c"), {"a": "1"}),
    ]
    assert watcher.take() == []


def test_change_node_of_an_entity_without_a_node_empties_it():
    ensemble = started()
    write(ensemble, client_entity("c"), a="1")
    watcher = Watcher(ensemble)
    watcher.settle()
    admin = MemoryCoordinator(ensemble)
    admin.execute(Delete(client_entity("c").path))
    admin.execute(Create(CONFIG_CHANGE, encode_config_change("clients/c"), sequential=True))
    assert watcher.take()[-1] == (client_entity("c"), {})


def test_new_topic_is_read_on_request():
    """Its creation has no change node."""
    ensemble = started()
    watcher = Watcher(ensemble)
    watcher.settle()
    make_topic(ensemble, "t", a="1")
    make_topic(ensemble, "u")
    assert watcher.take() == []
    watcher.watch.want_topic("t", None, watcher.now)
    watcher.watch.want_topic("u", None, watcher.now)
    assert watcher.take() == [(topic_entity("t"), {"a": "1"}), (topic_entity("u"), {})]


@pytest.mark.parametrize("shown", [None, UUID(int=1)], ids=["no topic", "an earlier topic"])
def test_topic_that_a_lagging_server_does_not_show_yet_is_read_once_it_does(shown):
    """The controller has told of the topic, and the ZooKeeper server of this session is behind."""
    ensemble = started()
    if shown is not None:
        make_topic(ensemble, "t", shown)
    watcher = Watcher(ensemble)
    watcher.settle()
    watcher.watch.want_topic("t", UUID(int=2), watcher.now)
    while watcher.step():
        pass
    assert watcher.updates == [] and watcher.watch.take_topics_read() == []
    if shown is not None:
        MemoryCoordinator(ensemble).execute(Delete(topic_path("t")))
    make_topic(ensemble, "t", UUID(int=2), a="1")
    assert watcher.take() == [(topic_entity("t"), {"a": "1"})]
    assert watcher.now_ms == LOOK_AGAIN_MS
    assert watcher.watch.take_topics_read() == [("t", UUID(int=2))]


def test_topic_that_does_not_appear_has_no_settings_after_a_while():
    """It was deleted after the controller told of it."""
    watcher = Watcher(started())
    watcher.settle()
    watcher.watch.want_topic("t", UUID(int=2), watcher.now)
    assert watcher.take() == [(topic_entity("t"), {})]
    assert watcher.now_ms == LAG_MAX_MS
    assert watcher.watch.take_topics_read() == [("t", UUID(int=2))]


def test_changes_are_told_while_a_wanted_topic_is_not_there():
    ensemble = started()
    watcher = Watcher(ensemble)
    watcher.settle()
    watcher.watch.want_topic("t", UUID(int=2), watcher.now)
    while watcher.step():
        pass
    write(ensemble, client_entity("c"), a="1")
    while watcher.step():
        pass
    assert watcher.updates == [(client_entity("c"), {"a": "1"})] and watcher.now_ms == 0


def test_topic_that_is_wanted_again_during_its_read_is_read_again():
    ensemble = started()
    watcher = Watcher(ensemble)
    watcher.settle()
    make_topic(ensemble, "t")
    watcher.watch.want_topic("t", None, watcher.now)
    (operation,) = watcher.watch.take_operations()
    watcher.watch.completed(operation, watcher.coordinator.execute(operation), watcher.now)
    (operation,) = watcher.watch.take_operations()
    outcome = pytest.raises(CoordinationError, watcher.coordinator.execute, operation).value
    write(ensemble, topic_entity("t"), a="1")
    watcher.watch.want_topic("t", None, watcher.now)
    watcher.watch.completed(operation, outcome, watcher.now)
    assert watcher.take()[-1] == (topic_entity("t"), {"a": "1"})


def test_topic_that_is_wanted_in_a_session_that_ends_is_read_in_the_next():
    ensemble = started()
    watcher = Watcher(ensemble)
    watcher.settle()
    make_topic(ensemble, "t")
    watcher.watch.want_topic("t", None, watcher.now)
    watcher.watch.take_operations()
    watcher.coordinator.expire()
    assert watcher.take() == [(topic_entity("t"), {})]


def test_new_session_tells_what_differs():
    """Entities that were deleted meanwhile become empty, even if the change nodes are gone."""
    ensemble = started()
    for name in ("kept", "changed", "deleted"):
        write(ensemble, client_entity(name), a="1")
    watcher = Watcher(ensemble)
    watcher.settle()
    watcher.updates.clear()
    watcher.coordinator.cut()
    write(ensemble, client_entity("changed"), a="2")
    admin = MemoryCoordinator(ensemble)
    admin.execute(Delete(client_entity("deleted").path))
    for name in list(ensemble.names(CONFIG_CHANGES)):
        admin.execute(Delete(f"{CONFIG_CHANGES}/{name}"))
    watcher.coordinator.expire()
    watcher.coordinator.heal()
    assert watcher.take() == [(client_entity("deleted"), {}), (client_entity("changed"), {"a": "2"})]


def test_forgotten_topic_is_told_again_by_the_next_full_read():
    ensemble = started()
    write(ensemble, topic_entity("t"), a="1")
    watcher = Watcher(ensemble)
    watcher.settle()
    watcher.updates.clear()
    watcher.watch.forget_topic("t")
    watcher.coordinator.expire()
    assert watcher.take() == [(topic_entity("t"), {"a": "1"})]


def test_damaged_nodes_are_named_and_the_others_applied():
    ensemble = started()
    write(ensemble, topic_entity("t"), a="1")
    write(ensemble, topic_entity("u"), a="1")
    watcher = Watcher(ensemble)
    watcher.settle()
    admin = MemoryCoordinator(ensemble)
    node = admin.execute(Get(topic_entity("t").path))
    admin.execute(Set(topic_entity("t").path, b"{", node.version))
    admin.execute(Create(CONFIG_CHANGE, encode_config_change("topics/t"), sequential=True))
    damaged_change = admin.execute(Create(CONFIG_CHANGE, b"[]", sequential=True))
    admin.execute(Create(CONFIG_CHANGE, encode_config_change("groups/g"), sequential=True))
    write(ensemble, topic_entity("u"), a="2")
    watcher.settle()
    assert (watcher.settings[topic_entity("t")], watcher.settings[topic_entity("u")]) == ({"a": "1"}, {"a": "2"})
    assert topic_entity("t").path in watcher.watch.problems and damaged_change in watcher.watch.problems
    assert len(watcher.watch.problems) == 3 and watcher.watch.problem.startswith("/config/")
    admin.execute(Set(topic_entity("t").path, encode_config({"a": "3"}), node.version + 1))
    admin.execute(Create(CONFIG_CHANGE, encode_config_change("topics/t"), sequential=True))
    watcher.settle()
    assert watcher.settings[topic_entity("t")] == {"a": "3"}
    for name in list(ensemble.names(CONFIG_CHANGES)):
        admin.execute(Delete(f"{CONFIG_CHANGES}/{name}"))
    watcher.settle()
    assert watcher.watch.problem is None


def test_old_change_nodes_are_deleted_by_the_next_change():
    """Kafka's change.expiration is 15 minutes. The watch counts from its first look at a node."""
    ensemble = started()
    watcher, other = Watcher(ensemble), Watcher(ensemble)
    write(ensemble, topic_entity("t"), a="1")
    watcher.settle()
    other.settle()
    watcher.now_ms = CHANGE_EXPIRATION_MS - 1
    write(ensemble, topic_entity("u"), a="1")
    watcher.settle()
    assert len(change_nodes(ensemble)) == 2
    other.now_ms = CHANGE_EXPIRATION_MS
    other.settle()
    assert change_nodes(ensemble) == ['{"version":2,"entity_path":"topics/u"}']
    watcher.now_ms = 2 * CHANGE_EXPIRATION_MS  # this watch tries to delete a node that is gone
    write(ensemble, topic_entity("v"), a="1")
    watcher.settle()
    assert change_nodes(ensemble) == ['{"version":2,"entity_path":"topics/v"}']
    assert watcher.watch.problem is None


def test_change_node_that_is_deleted_before_it_is_read_causes_a_full_read():
    ensemble = started()
    watcher = Watcher(ensemble)
    watcher.settle()
    write(ensemble, client_entity("c"), a="1")
    watcher.take_events()
    (children,) = watcher.watch.take_operations()
    watcher.watch.completed(children, watcher.coordinator.execute(children), watcher.now)
    (name,) = ensemble.names(CONFIG_CHANGES)
    MemoryCoordinator(ensemble).execute(Delete(f"{CONFIG_CHANGES}/{name}"))
    assert watcher.take() == [(client_entity("c"), {"a": "1"})]


def test_failed_read_is_named_and_tried_again_after_a_pause():
    ensemble = started()
    watcher = Watcher(ensemble)
    watcher.take_events()
    (operation,) = watcher.watch.take_operations()
    watcher.watch.completed(operation, CoordinationError("no such quorum"), Now(0, 0))
    assert watcher.watch.problem == "no such quorum"
    assert watcher.watch.take_operations() == [] and watcher.watch.next_deadline_ms() == 1_000
    watcher.settle()
    assert watcher.watch.problem is None and watcher.watch.has_read_all


def tree_settings(ensemble):
    """Return the settings of all entities in the tree; an entity without settings is left out."""
    settings = {}
    for path, node in ensemble.nodes.items():
        if path.startswith("/config/") and not path.startswith(CONFIG_CHANGES):
            try:
                entity = decode_entity_path(path, path.removeprefix("/config/"))
            except DamagedDocument:
                continue
            settings[entity] = decode_config(path, node.data)
    return {entity: values for entity, values in settings.items() if values}


class Model:
    """Random writes, topics that come and go, losses, cuts, expired sessions, and watchers that work step by step."""

    ENTITIES = (broker_entity(1), client_entity(None), user_entity("u"), user_client_entity("u", "c"))

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.ensemble = started()
        self.watchers = [Watcher(self.ensemble) for _ in range(3)]
        self.topics = set()
        self.numbers = iter(range(1_000_000))

    def act(self):
        watcher = self.random.choice(self.watchers)
        acts = [
            (8, watcher.step),
            (3, self.write),
            (1, self.create_topic),
            (1, self.delete_topic),
            (1, self.write_as_kafka),
            (1, lambda: self.cut(watcher)),
            (1, lambda: self.expire(watcher)),
            (1, lambda: setattr(watcher.coordinator, self.random.choice(("lose_answers", "lose_requests")), 2)),
            (1, self.pass_time),
        ]
        self.random.choices([act for _, act in acts], [weight for weight, _ in acts])[0]()

    def write(self):
        topics = [topic_entity(topic) for topic in sorted(self.topics)]
        entity = self.random.choice([*self.ENTITIES, *topics])
        write(self.ensemble, entity, **self.values())

    def write_as_kafka(self):
        """Write an entity and then its change node, between which watchers work."""
        entity, admin = self.random.choice(self.ENTITIES), MemoryCoordinator(self.ensemble)
        if entity.path in self.ensemble.nodes:
            admin.execute(Set(entity.path, encode_config(self.values()), ANY_VERSION))
            for _ in range(self.random.randrange(5)):
                self.random.choice(self.watchers).step()
            admin.execute(Create(CONFIG_CHANGE, encode_config_change(entity.entity_path), sequential=True))

    def values(self):
        return self.random.choice(({"a": str(next(self.numbers))}, {"a": "1", "b": "2"}, {}))

    def create_topic(self):
        topic = self.random.choice("tuv")
        if topic not in self.topics:
            self.topics.add(topic)
            make_topic(self.ensemble, topic, **self.values())
            for watcher in self.watchers:
                watcher.watch.want_topic(topic, None, watcher.now)

    def delete_topic(self):
        if self.topics:
            topic = self.random.choice(sorted(self.topics))
            self.topics.remove(topic)
            admin = MemoryCoordinator(self.ensemble)
            admin.execute(Delete(topic_path(topic)))
            if topic_entity(topic).path in self.ensemble.nodes:
                admin.execute(Delete(topic_entity(topic).path))
            for watcher in self.watchers:
                watcher.watch.forget_topic(topic)
                watcher.settings.pop(topic_entity(topic), None)

    def cut(self, watcher):
        watcher.coordinator.cut()
        for _ in range(self.random.randrange(10)):
            self.act_of_others(watcher)
        watcher.coordinator.heal()

    def act_of_others(self, watcher):
        self.random.choice((self.write, watcher.step))()

    def expire(self, watcher):
        watcher.coordinator.expire()

    def pass_time(self):
        """Let time pass. A session that lives for minutes has heard of all changes before."""
        elapsed_ms = self.random.choice((50, 500, CHANGE_EXPIRATION_MS))
        for watcher in self.watchers:
            if elapsed_ms == CHANGE_EXPIRATION_MS:
                watcher.settle()
            watcher.now_ms += elapsed_ms


@pytest.mark.parametrize("seed", range(60))
def test_all_watchers_end_with_the_settings_of_the_tree(seed):
    model = Model(seed)
    for _ in range(300):
        model.act()
    for watcher in model.watchers:
        watcher.coordinator.lose_answers = watcher.coordinator.lose_requests = 0
        watcher.settle()
    expected = tree_settings(model.ensemble)
    for watcher in model.watchers:
        topics = {topic_entity(topic) for topic in "tuv"} - {topic_entity(topic) for topic in model.topics}
        applied = {e: settings for e, settings in watcher.settings.items() if settings and e not in topics}
        assert applied == expected
        assert watcher.watch.problem is None
