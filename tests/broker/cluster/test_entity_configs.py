"""Settings, quotas and credentials as any broker writes them, byte for byte as Apache Kafka 3.9.1 (facts 8 and 16)."""

import base64

import pytest

from broker.cluster.config_entity import (
    ConfigEntity,
    ScramCredential,
    broker_entity,
    client_entity,
    decode_entity_path,
    decode_scram,
    encode_scram,
    ip_entity,
    topic_entity,
    user_client_entity,
    user_entity,
)
from broker.cluster.documents import (
    CONFIG_CHANGES,
    CONTROLLER,
    PERSISTENT_PATHS,
    DamagedDocument,
    decode_config,
    encode_controller,
)
from broker.cluster.entity_configs import NoController, read_configs, write_config
from coordination.memory import Ensemble, MemoryCoordinator
from coordination.port import Create, Get, Multi, Set
from tests.broker.cluster.procedures import Crashed, FaultyCoordinator, run
from tests.golden.controller_acts import Write, writes

FAULTS = ("lose_answers", "lose_requests", "crash_before", "crash_after")


def started():
    """Return an ensemble with a controller, as a broker finds it after its registration."""
    ensemble = Ensemble()
    broker = MemoryCoordinator(ensemble)
    for path in PERSISTENT_PATHS:
        broker.execute(Create(path))
    broker.execute(Create(CONTROLLER, encode_controller(1, 0), ephemeral=True))
    return ensemble


def settings_of(ensemble, entity):
    return decode_config(entity.path, ensemble.nodes[entity.path].data)


def change_nodes(ensemble):
    return [ensemble.nodes[f"{CONFIG_CHANGES}/{name}"].data.decode() for name in sorted(ensemble.names(CONFIG_CHANGES))]


def put(**settings):
    """Return a change that sets some settings and keeps the others."""
    return lambda present: {**present, **settings}


class RecordingCoordinator(MemoryCoordinator):
    """A session whose writes are recorded as the golden file has them."""

    def __init__(self, ensemble):
        super().__init__(ensemble)
        self.writes = []

    def execute(self, operation):
        result = super().execute(operation)
        for part in operation.operations if isinstance(operation, Multi) else (operation,):
            if isinstance(part, Create | Set):
                path = part.path
                if path.startswith(CONFIG_CHANGES):
                    path += f"{sum(write.path.startswith(CONFIG_CHANGES) for write in self.writes):010}"
                self.writes.append(Write(type(part).__name__.lower(), path, part.data.decode()))
        return result


def test_writes_equal_kafkas():
    """A client's quota, settings of topics, of all brokers and of one, and a credential: nodes, order and bytes."""
    coordinator = RecordingCoordinator(started())
    for topic in ("t", "m"):
        coordinator.execute(Create(topic_entity(topic).path, b'{"version":1,"config":{}}'))
    coordinator.writes.clear()
    throttle = {"leader.replication.throttled.rate": "2000000", "follower.replication.throttled.rate": "2000000"}
    everything = {"leader.replication.throttled.replicas": "*", "follower.replication.throttled.replicas": "*"}
    stored = base64.b64decode("9Gla9MZCY/Hmir2FDttZsga97YzhDW/di4r5oduAB/0=")
    server = base64.b64decode("7x7GitGt1fP4/QEJl9m/B0Al3ku/uagY2DXTEKD4ZGk=")
    credential = encode_scram(ScramCredential(b"salt", stored, server, 4096))
    acts = [
        (client_entity("c"), {"producer_byte_rate": "1000000000"}),
        (topic_entity("t"), {"retention.ms": "1000000"}),
        (broker_entity(None), {"log.retention.ms": "77777777"}),
        (broker_entity(1), throttle),
        (broker_entity(1), throttle),
        (broker_entity(2), throttle),
        (broker_entity(3), throttle),
        (topic_entity("m"), everything),
        (user_entity("u"), {"SCRAM-SHA-256": credential}),
    ]
    for entity, settings in acts:
        run(coordinator, write_config(entity, lambda present, new=settings: {**present, **new}))
    golden = [write for write in writes(72, 148) if write.path.startswith("/config/")]
    created_with_topics = ("/config/topics/m", "/config/topics/__transaction_state")
    golden = [write for write in golden if write.operation == "set" or write.path not in created_with_topics]
    assert coordinator.writes == golden


@pytest.mark.parametrize(
    ("entity", "entity_path"),
    [
        (topic_entity("t"), "topics/t"),
        (broker_entity(1), "brokers/1"),
        (broker_entity(None), "brokers/<default>"),
        (client_entity("c"), "clients/c"),
        (client_entity(None), "clients/<default>"),
        (client_entity("a b*c+d/e~f"), "clients/a%20b%2Ac%2Bd%2Fe%7Ef"),
        (user_entity("CN=ü"), "users/CN%3D%C3%BC"),
        (user_entity("<default>"), "users/%3Cdefault%3E"),
        (user_entity(None), "users/<default>"),
        (user_client_entity("u", "c"), "users/u/clients/c"),
        (user_client_entity(None, None), "users/<default>/clients/<default>"),
        (ip_entity("1.2.3.4"), "ips/1.2.3.4"),
        (ip_entity(None), "ips/<default>"),
    ],
)
def test_entity_paths_are_kafkas(entity, entity_path):
    """Names of users, clients and addresses are sanitized as Kafka's Sanitizer does it."""
    assert entity.entity_path == entity_path
    assert entity.path == f"/config/{entity_path}"
    assert decode_entity_path("/c", entity_path) == entity


@pytest.mark.parametrize(
    "text",
    ["", "topics", "topics/", "groups/g", "topics/t/clients/c", "users/u/clients", "users/u/ips/x",
     "users/u/clients/c/d", "users/a b", "users/..", "users/%2E", "clients/a+b"],
)  # fmt: skip
def test_other_entity_paths_are_damaged_by_name(text):
    with pytest.raises(DamagedDocument, match="/changes/7"):
        decode_entity_path("/changes/7", text)


def test_credential_of_a_user_is_kafkas_text():
    text = "salt=c2FsdA==,stored_key=AQI=,server_key=/wA=,iterations=4096"
    assert decode_scram("/p", text) == ScramCredential(b"salt", b"\x01\x02", b"\xff\x00", 4096)
    assert encode_scram(decode_scram("/p", text)) == text


@pytest.mark.parametrize(
    "text",
    ["", "salt=c2FsdA==", "salt=%,stored_key=AQI=,server_key=AQI=,iterations=1",
     "salt=AQI=,stored_key=AQI=,server_key=AQI=,iterations=secret",
     "salt=AQI=,stored_key=AQI=,server_key=AQI=,x=secret"],
)  # fmt: skip
def test_damaged_credential_is_an_error_that_does_not_show_it(text):
    with pytest.raises(DamagedDocument, match="^/config/users/u: damaged SCRAM credential") as caught:
        decode_scram("/config/users/u", text)
    assert "secret" not in str(caught.value) and "AQI" not in str(caught.value)


def test_credential_does_not_show_its_keys():
    assert repr(ScramCredential(b"salt", b"stored", b"server", 4096)) == "ScramCredential(iterations=4096)"


def test_all_entities_are_read():
    ensemble = started()
    coordinator = MemoryCoordinator(ensemble)
    configs = {
        topic_entity("t"): {"a": "1"},
        broker_entity(None): {"b": "2"},
        client_entity("x y"): {"c": "3"},
        user_entity("u"): {"d": "4"},
        user_client_entity("u", "c"): {"e": "5"},
        user_client_entity(None, None): {"f": "6"},
        ip_entity("::1"): {"g": "7"},
    }
    for entity, settings in configs.items():
        run(coordinator, write_config(entity, settings))
    assert run(coordinator, read_configs()) == ({user_entity(None): {}, **configs}, {})


@pytest.mark.parametrize("entity", [client_entity("c"), user_entity("u"), ip_entity("10.0.0.1"), user_entity(None)])
def test_an_owner_of_quotas_without_settings_has_no_node(entity):
    """As in Kafka (AdminZkClient.changeEntityConfig)."""
    ensemble = started()
    coordinator = MemoryCoordinator(ensemble)
    run(coordinator, write_config(entity, {"request_percentage": "1.5"}))
    run(coordinator, write_config(entity, {}))
    assert entity.path not in ensemble.nodes
    assert len(change_nodes(ensemble)) == 2


def test_a_client_id_of_a_user_takes_the_nodes_above_it_along_if_they_are_empty():
    ensemble = started()
    coordinator = MemoryCoordinator(ensemble)
    for client_id in ("a", "b"):
        run(coordinator, write_config(user_client_entity("u", client_id), {"request_percentage": "1.5"}))
    run(coordinator, write_config(user_entity("u"), {"request_percentage": "2.5"}))
    run(coordinator, write_config(user_client_entity("u", "a"), {}))
    assert [path for path in ensemble.nodes if path.startswith("/config/users/u/clients/")] == [
        "/config/users/u/clients/b"
    ]
    run(coordinator, write_config(user_entity("u"), {}))
    assert "/config/users/u" in ensemble.nodes, "its client ids have quotas"
    run(coordinator, write_config(user_client_entity("u", "b"), {}))
    assert not [path for path in ensemble.nodes if path.startswith("/config/users/u")]


@pytest.mark.parametrize("entity", [topic_entity("t"), broker_entity(1)])
def test_a_topic_or_a_broker_without_settings_keeps_its_node(entity):
    ensemble = started()
    coordinator = MemoryCoordinator(ensemble)
    run(coordinator, write_config(entity, {"retention.ms": "5"}))
    run(coordinator, write_config(entity, {}))
    assert settings_of(ensemble, entity) == {}


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"version":1,"config":[]}', b"\xff"])
def test_damaged_entity_is_named_and_the_others_are_read(data):
    ensemble = started()
    coordinator = MemoryCoordinator(ensemble)
    coordinator.execute(Create("/config/topics/bad", data))
    coordinator.execute(Create("/config/users/%2E", b"{}"))  # a name that no broker writes
    run(coordinator, write_config(topic_entity("t"), {"a": "1"}))
    configs = run(coordinator, read_configs())
    assert configs.settings == {topic_entity("t"): {"a": "1"}}
    assert list(configs.damaged) == [topic_entity("bad")]
    assert configs.damaged[topic_entity("bad")].startswith("/config/topics/bad: ")
    with pytest.raises(DamagedDocument, match="/config/topics/bad"):
        run(coordinator, write_config(topic_entity("bad"), put(a="1")))


def test_quotas_and_credentials_of_a_user_are_one_document():
    ensemble = started()
    coordinator = MemoryCoordinator(ensemble)
    run(coordinator, write_config(user_entity("u"), put(producer_byte_rate="5")))
    run(coordinator, write_config(user_entity("u"), put(**{"SCRAM-SHA-256": "salt"})))
    assert settings_of(ensemble, user_entity("u")) == {"producer_byte_rate": "5", "SCRAM-SHA-256": "salt"}


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("number", range(1, 6))
def test_write_of_another_broker_is_kept(number, exists):
    """Another broker writes before any of the operations, also between the read and the Set."""
    ensemble, entity = started(), user_entity("u")
    other = MemoryCoordinator(ensemble)
    expected = {"ours": "2"}
    if exists:
        run(other, write_config(entity, {"old": "0"}))
        expected["old"] = "0"

    def interfere(count):
        if count == number:
            run(other, write_config(entity, put(theirs="1")))
            expected["theirs"] = "1"

    run(FaultyCoordinator(ensemble, before=interfere), write_config(entity, put(ours="2")))
    assert settings_of(ensemble, entity) == expected
    assert len(change_nodes(ensemble)) == len(expected)


@pytest.mark.parametrize("entity", [topic_entity("t"), user_client_entity("u", "c")])
@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("number", range(1, 8))
def test_write_is_told_whichever_operation_is_lost(fault, number, exists, entity):
    """A change without a change node would reach no other broker; a second change node is harmless."""
    ensemble = started()
    if exists:
        run(MemoryCoordinator(ensemble), write_config(entity, {"a": "0"}))
    before = len(change_nodes(ensemble))
    counter = []

    def append(present):
        """Return settings that show how often the change was applied."""
        counter.append(1)
        return {**present, "a": f"{present.get('a', '')}+1"}

    coordinator = FaultyCoordinator(ensemble, number, fault)
    try:
        written = run(coordinator, write_config(entity, append))
    except Crashed:
        node = ensemble.nodes.get(entity.path)
        is_written = node is not None and b"+1" in node.data
        assert (len(change_nodes(ensemble)) > before) == is_written
        return
    assert settings_of(ensemble, entity) == written == {"a": "0+1" if exists else "+1"}
    assert change_nodes(ensemble)[before:] == [f'{{"version":2,"entity_path":"{entity.entity_path}"}}']


def test_lost_answer_of_a_write_that_another_broker_changed_is_written_anew():
    ensemble, entity = started(), topic_entity("t")
    other = MemoryCoordinator(ensemble)
    run(other, write_config(entity, {}))

    def interfere(count):
        if count == 3:  # after the Multi, before the read
            run(other, write_config(entity, put(b="2")))

    run(FaultyCoordinator(ensemble, 2, "lose_answers", interfere), write_config(entity, put(a="1")))
    assert settings_of(ensemble, entity) == {"a": "1", "b": "2"}


def test_write_without_a_controller_waits_for_one_and_then_fails_by_name():
    """Kafka checks in the same Multi that /controller exists."""
    ensemble, entity = started(), topic_entity("t")
    coordinator = MemoryCoordinator(ensemble)
    run(coordinator, write_config(entity, {"a": "1"}))
    controller = ensemble.nodes.pop(CONTROLLER)
    with pytest.raises(NoController, match="topics/t were not changed"):
        run(coordinator, write_config(entity, {"a": "2"}))

    def elect(count):
        if count == 4:
            ensemble.nodes[CONTROLLER] = controller

    run(FaultyCoordinator(ensemble, before=elect), write_config(entity, {"a": "3"}))
    assert settings_of(ensemble, entity) == {"a": "3"}


@pytest.mark.parametrize("entity", [client_entity("c" * 250), client_entity(".node"), ConfigEntity("clients", ("",))])
def test_names_that_no_node_can_have_are_refused_before_any_operation(entity):
    coordinator = FaultyCoordinator(started())
    with pytest.raises(ValueError, match="node's path"):
        run(coordinator, write_config(entity, {}))
    assert coordinator.count == 0


def test_settings_that_no_node_can_hold_are_refused():
    coordinator = MemoryCoordinator(started())
    with pytest.raises(ValueError, match="bytes"):
        run(coordinator, write_config(topic_entity("t"), {"a": "x" * 1_000_001}))
    assert isinstance(coordinator.execute(Get(CONTROLLER)).data, bytes)
