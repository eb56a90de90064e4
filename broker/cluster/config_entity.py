"""The owners of settings, quotas and credentials, and their nodes below /config (Kafka's ConfigEntity).

| entity | node | settings |
|---|---|---|
| topic t | /config/topics/t | of the topic |
| broker 1, all brokers | /config/brokers/1, /config/brokers/<default> | dynamic settings |
| client id c, any client id | /config/clients/c, /config/clients/<default> | quotas |
| user u, any user | /config/users/u, /config/users/<default> | quotas, and the credentials of u |
| client id c of user u | /config/users/u/clients/c; each of both may be <default> | quotas |
| IP address x | /config/ips/x, /config/ips/<default> | quotas of connections |

Names of users, client ids and IP addresses are sanitized, so that each is one name of a node (Kafka's Sanitizer).
"""

from base64 import b64decode, b64encode
from typing import NamedTuple
from urllib.parse import quote, unquote_plus

from broker.cluster.documents import DamagedDocument
from coordination.port import check_path

CONFIG = "/config"
TOPIC_TYPE, BROKER_TYPE, CLIENT_TYPE, USER_TYPE, IP_TYPE = "topics", "brokers", "clients", "users", "ips"
ENTITY_TYPES = (TOPIC_TYPE, BROKER_TYPE, CLIENT_TYPE, USER_TYPE, IP_TYPE)
DEFAULT_NAME = "<default>"

_SCRAM_KEYS = ("salt", "stored_key", "server_key", "iterations")


class ConfigEntity(NamedTuple):
    """An owner of settings. `names` has one name; for a client id of a user it has the user's and the client id.

    The name None stands for <default>, whose settings hold for each entity of the type that has none.
    """

    entity_type: str
    names: tuple[str | None, ...]

    @property
    def entity_path(self) -> str:
        """Return the entity as a change node names it: `topics/t`, `users/<default>/clients/c`."""
        types = (self.entity_type, CLIENT_TYPE)
        return "/".join(
            f"{entity_type}/{_node_name(entity_type, name)}"
            for entity_type, name in zip(types, self.names, strict=False)
        )

    @property
    def path(self) -> str:
        """Return the path of the node with the settings."""
        return f"{CONFIG}/{self.entity_path}"

    def __str__(self) -> str:
        return self.entity_path


def topic_entity(topic: str) -> ConfigEntity:
    return ConfigEntity(TOPIC_TYPE, (topic,))


def broker_entity(broker_id: int | None) -> ConfigEntity:
    """Return a broker; None stands for all brokers."""
    return ConfigEntity(BROKER_TYPE, (None if broker_id is None else str(broker_id),))


def client_entity(client_id: str | None) -> ConfigEntity:
    return ConfigEntity(CLIENT_TYPE, (client_id,))


def user_entity(user: str | None) -> ConfigEntity:
    return ConfigEntity(USER_TYPE, (user,))


def user_client_entity(user: str | None, client_id: str | None) -> ConfigEntity:
    return ConfigEntity(USER_TYPE, (user, client_id))


def ip_entity(address: str | None) -> ConfigEntity:
    return ConfigEntity(IP_TYPE, (address,))


def decode_entity_path(path: str, entity_path: str) -> ConfigEntity:
    """Return the entity that the change node at `path` names. Raise DamagedDocument for any other text."""
    parts = entity_path.split("/")
    entity_type, names = parts[0], parts[1::2]
    is_entity = len(parts) == 2 or (len(parts) == 4 and (entity_type, parts[2]) == (USER_TYPE, CLIENT_TYPE))
    if entity_type not in ENTITY_TYPES or not is_entity or not all(names):
        raise DamagedDocument(f"{path}: {entity_path[:200]!r} names no owner of settings")
    entity = ConfigEntity(entity_type, tuple(map(_name_of_node, (entity_type, CLIENT_TYPE), names)))
    if entity.entity_path != entity_path:
        raise DamagedDocument(f"{path}: {entity_path[:200]!r} is not sanitized as Kafka does it")
    try:
        check_path(entity.path)
    except ValueError as error:
        raise DamagedDocument(f"{path}: {error}") from error
    return entity


def _name_of_node(entity_type: str, node_name: str) -> str | None:
    """Return the name of the entity of a node; None for <default>."""
    if node_name == DEFAULT_NAME:
        return None
    return node_name if entity_type in (TOPIC_TYPE, BROKER_TYPE) else unquote_plus(node_name)


def sanitize(name: str) -> str:
    """Return a name as Kafka's Sanitizer writes it: percent-encoded, except for letters, digits, `.`, `_` and `-`."""
    return quote(name, safe="").replace("~", "%7E")


def _node_name(entity_type: str, name: str | None) -> str:
    if name is None:
        return DEFAULT_NAME
    return name if entity_type in (TOPIC_TYPE, BROKER_TYPE) else sanitize(name)


class ScramCredential(NamedTuple):
    """The keys that a broker stores in place of a user's password (SCRAM, RFC 5802)."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"ScramCredential(iterations={self.iterations})"  # keys stay out of logs and errors


def encode_scram(credential: ScramCredential) -> str:
    """Return a credential as the value of the setting `SCRAM-SHA-256` or `SCRAM-SHA-512` of a user."""
    salt, stored_key, server_key = (b64encode(value).decode() for value in credential[:3])
    return f"salt={salt},stored_key={stored_key},server_key={server_key},iterations={credential.iterations}"


def decode_scram(path: str, text: str) -> ScramCredential:
    """Return the credential of a user at `path`. The message of DamagedDocument does not show the text."""
    fields = dict(field.partition("=")[::2] for field in text.split(","))
    try:
        if sorted(fields) != sorted(_SCRAM_KEYS):
            raise ValueError(f"a credential has {', '.join(_SCRAM_KEYS)}")
        salt, stored_key, server_key = (b64decode(fields[key], validate=True) for key in _SCRAM_KEYS[:3])
        return ScramCredential(salt, stored_key, server_key, int(fields["iterations"]))
    except ValueError as error:
        reason = str(error) if str(error).startswith("a credential") else "a value is not Base64, or not a number"
        raise DamagedDocument(f"{path}: damaged SCRAM credential: {reason}") from None
