"""Client quotas (KIP-546) and SCRAM credentials (KIP-554) through the wire: how they are stored and shown.
test_throttling covers how quotas are enforced."""

import hashlib
import hmac

import pytest

from broker.log.storage.port import StorageError
from broker.wire.errors import ErrorCode
from tests.broker.engine_client import ALTER_QUOTAS, ALTER_SCRAM, DESCRIBE_QUOTAS, DESCRIBE_SCRAM, EngineBroker
from tests.broker.work import grows_in_proportion, steps_of

EXACT, DEFAULT, SPECIFIED = 0, 1, 2
SHA_256, SHA_512 = 1, 2


@pytest.fixture
def broker():
    return EngineBroker(max_client_quotas=4, max_scram_credentials=3)


@pytest.fixture
def client(broker):
    return broker.connect()


@pytest.fixture
def full_disk(broker, monkeypatch):
    def full(path, data):
        raise StorageError(path, "No space left on device")

    monkeypatch.setattr(broker.storage, "replace", full)


def entry(entity, **quotas):
    """Return an entry of AlterClientQuotas; a quota of None is removed."""
    return {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
        "ops": [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in quotas.items()],
    }


def alter(client, *entries, version=1, validate_only=False):
    answer = client.ask(ALTER_QUOTAS, version, {"entries": entries, "validate_only": validate_only})
    return [result.error_code for result in answer.entries]


def described(client, *components, strict=False, version=1):
    """Return the quotas that a filter finds as {entity: quotas}, or the error code if the filter is refused."""
    filter_components = [{"entity_type": kind, "match_type": how, "match": name} for kind, how, name in components]
    answer = client.ask(DESCRIBE_QUOTAS, version, {"components": filter_components, "strict": strict})
    if answer.error_code:
        assert answer.entries is None and answer.error_message
        return answer.error_code
    return {
        tuple((part.entity_type, part.entity_name) for part in row.entity): {v.key: v.value for v in row.values}
        for row in answer.entries
    }


def test_entries_cost_the_same_however_many_a_request_has():
    """A request of 1 MB with 20,000 entries once delayed all connections by half a minute."""

    def work_of(number):
        client = EngineBroker(max_client_quotas=10_000).connect()
        entries = [entry([("user", f"user-{n}")], producer_byte_rate=1024.0) for n in range(number)]
        return steps_of(lambda: alter(client, *entries, validate_only=True))

    assert grows_in_proportion(work_of, 50)


ANN, BOTH, ALL = (("user", "ann"),), (("client-id", "app"), ("user", "ann")), (("user", None),)


@pytest.mark.parametrize("version", [0, 1])
def test_quotas_are_kept_over_a_restart_and_shown(broker, client, version):
    assert alter(client, entry(ANN, producer_byte_rate=1024.0, request_percentage=12.5), version=version) == [0]
    for reader in (client, broker.restarted(clean=False).connect()):
        assert described(reader, version=version) == {ANN: {"producer_byte_rate": 1024.0, "request_percentage": 12.5}}
    assert alter(client, entry(ANN, producer_byte_rate=None, request_percentage=None), version=version) == [0]
    assert described(client) == {}


def test_the_operator_is_told_who_altered_them(broker, client):
    alter(client, entry(ANN, producer_byte_rate=1024.0))
    assert broker.reported[-1] == f"{client.conn.peer} altered quotas of user ann"


def test_a_filter_finds_by_name_by_default_and_by_type(client):
    for entity in (ANN, BOTH, ALL, (("ip", "10.0.0.1"),)):
        key = "connection_creation_rate" if entity[0][0] == "ip" else "consumer_byte_rate"
        assert alter(client, entry(entity, **{key: 5.0})) == [0]
    assert set(described(client, ("user", EXACT, "ann"))) == {ANN, BOTH}
    assert set(described(client, ("user", EXACT, "ann"), strict=True)) == {ANN}
    assert set(described(client, ("user", DEFAULT, None))) == {ALL}
    assert set(described(client, ("user", SPECIFIED, None), strict=True)) == {ANN, ALL}
    assert set(described(client, ("user", SPECIFIED, None), ("client-id", EXACT, "app"))) == {BOTH}
    assert set(described(client, ("ip", EXACT, "10.0.0.2"))) == set()


@pytest.mark.parametrize(
    "components, code",
    [
        ([("user", EXACT, "a"), ("user", EXACT, "b")], ErrorCode.INVALID_REQUEST),
        ([("team", EXACT, "a")], ErrorCode.UNSUPPORTED_VERSION),
        ([("", EXACT, "a")], ErrorCode.INVALID_REQUEST),
        ([("user", 7, "a")], ErrorCode.INVALID_REQUEST),
        ([("user", EXACT, None)], ErrorCode.INVALID_REQUEST),
        ([("user", DEFAULT, "a")], ErrorCode.INVALID_REQUEST),
        ([("user", SPECIFIED, "a")], ErrorCode.INVALID_REQUEST),
        ([("user", EXACT, "a"), ("ip", EXACT, "10.0.0.1")], ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_filter_that_can_find_nothing_is_refused(client, components, code):
    assert described(client, *components) == code


@pytest.mark.parametrize(
    "quota",
    [
        entry([], producer_byte_rate=1.0),
        entry([("team", "a")], producer_byte_rate=1.0),
        entry([("user", "")], producer_byte_rate=1.0),
        entry([("user", "a"), ("user", "b")], producer_byte_rate=1.0),
        entry([("user", "a"), ("ip", "10.0.0.1")], connection_creation_rate=1.0),
        entry([("ip", "here")], connection_creation_rate=1.0),
        entry([("ip", "10.0.0.1")], producer_byte_rate=1.0),
        entry(ANN, producer_byte_rate=-1.0),
        entry(ANN, producer_byte_rate=1.5),
        entry(ANN, speed=1.0),
        entry(ANN) | {"ops": [{"key": "request_percentage", "value": 1.0, "remove": False}] * 2},
    ],
)
def test_a_quota_that_cannot_be_is_refused_and_its_neighbour_kept(client, quota):
    other = entry([("user", "bob")], consumer_byte_rate=1.0)
    assert alter(client, quota, other) == [ErrorCode.INVALID_REQUEST, 0]
    assert described(client) == {(("user", "bob"),): {"consumer_byte_rate": 1.0}}


def test_an_entity_stands_in_a_request_once(client):
    assert alter(client, *[entry(ANN, consumer_byte_rate=1.0)] * 2) == [ErrorCode.INVALID_REQUEST] * 2
    assert described(client) == {}


def test_validating_a_quota_keeps_nothing(client):
    assert alter(client, entry(ANN, consumer_byte_rate=1.0), validate_only=True) == [0]
    assert described(client) == {}


def test_past_the_limit_no_entity_gets_quotas(client):
    entries = [entry([("user", f"u{n}")], consumer_byte_rate=1.0) for n in range(6)]
    assert alter(client, *entries) == [0] * 4 + [ErrorCode.POLICY_VIOLATION] * 2
    assert alter(client, entry([("user", "u0")], consumer_byte_rate=2.0)) == [0]


def test_quotas_no_disk_keeps_are_not_shown(client, full_disk):
    assert alter(client, entry(ANN, consumer_byte_rate=1.0), entry([])) == [ErrorCode.KAFKA_STORAGE_ERROR, 42]
    assert described(client) == {}


# --- credentials -------------------------------------------------------------------------------------------------


def upsert(user, mechanism=SHA_256, iterations=4_096, salted=b"salted"):
    return {"name": user, "mechanism": mechanism, "iterations": iterations, "salt": b"salt", "salted_password": salted}


def scram(client, upsertions=(), deletions=()):
    removed = [{"name": user, "mechanism": mechanism} for user, mechanism in deletions]
    answer = client.ask(ALTER_SCRAM, 0, {"deletions": removed, "upsertions": upsertions})
    return {result.user: result.error_code for result in answer.results}


def credentials(client, *users):
    user_names = [{"name": user} for user in users] if users else None
    return {
        result.user: result.error_code or [(info.mechanism, info.iterations) for info in result.credential_infos]
        for result in client.ask(DESCRIBE_SCRAM, 0, {"users": user_names}).results
    }


def test_credentials_are_kept_over_a_restart_as_a_server_needs_them(broker, client):
    """These are StoredKey and ServerKey (RFC 5802). With the salted password a reader of the file could log in."""
    assert scram(client, [upsert("ann"), upsert("bob", SHA_512, 8_192)]) == {"ann": 0, "bob": 0}
    assert scram(client, [upsert("ann", SHA_512)]) == {"ann": 0}
    again = broker.restarted(clean=False)
    assert credentials(again.connect()) == {"ann": [(1, 4_096), (2, 4_096)], "bob": [(2, 8_192)]}
    credential = again.services.metadata.credentials["ann", SHA_256]
    client_key = hmac.digest(b"salted", b"Client Key", "sha256")
    assert (credential.salt, credential.stored_key) == (b"salt", hashlib.sha256(client_key).digest())
    assert credential.server_key == hmac.digest(b"salted", b"Server Key", "sha256")
    assert scram(client, deletions=[("ann", SHA_512), ("bob", SHA_512)]) == {"ann": 0, "bob": 0}
    assert credentials(client) == {"ann": [(1, 4_096)]}


@pytest.mark.parametrize(
    "upsertion, code",
    [
        (upsert(""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsert("ann", iterations=4_095), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsert("ann", iterations=16_385), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsert("ann", mechanism=3), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
    ],
)
def test_a_credential_that_cannot_be_is_refused_and_its_neighbour_kept(client, upsertion, code):
    assert scram(client, [upsertion, upsert("bob")]) == {upsertion["name"]: code, "bob": 0}
    assert credentials(client) == {"bob": [(1, 4_096)]}


def test_a_user_stands_in_a_request_once(client):
    scram(client, [upsert("ann")])
    assert scram(client, [upsert("ann", SHA_512)], [("ann", SHA_256)]) == {"ann": ErrorCode.DUPLICATE_RESOURCE}
    assert credentials(client, "ann", "ann") == {"ann": ErrorCode.DUPLICATE_RESOURCE}


def test_a_user_without_credentials_is_not_found(client):
    assert credentials(client, "ann") == {"ann": ErrorCode.RESOURCE_NOT_FOUND}
    assert scram(client, deletions=[("ann", SHA_256)]) == {"ann": ErrorCode.RESOURCE_NOT_FOUND}


def test_past_the_limit_no_credential_is_taken(client):
    codes = scram(client, [upsert(f"u{n}") for n in range(4)])
    assert codes == {"u0": 0, "u1": 0, "u2": 0, "u3": ErrorCode.POLICY_VIOLATION}
    assert scram(client, [upsert("u0", iterations=5_000)]) == {"u0": 0}


def test_credentials_no_disk_keeps_are_not_shown(client, full_disk):
    assert scram(client, [upsert("ann")]) == {"ann": ErrorCode.KAFKA_STORAGE_ERROR}
    assert credentials(client) == {}
