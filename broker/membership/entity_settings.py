"""The settings, quotas and credentials of a cluster's coordinator, as the image has them, and back.

The coordinator keeps the settings of each entity as texts (broker.cluster.config_entity). The image has settings of
topics and brokers as texts too, quotas as numbers, and credentials apart. A value that cannot be read is reported and
left out, because another broker may have written it: the other values hold.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias
from uuid import UUID

from broker.cluster.config_entity import (
    BROKER_TYPE,
    CLIENT_TYPE,
    IP_TYPE,
    TOPIC_TYPE,
    USER_TYPE,
    ConfigEntity,
    ScramCredential,
    broker_entity,
    client_entity,
    decode_scram,
    encode_scram,
    ip_entity,
    topic_entity,
    user_client_entity,
    user_entity,
)
from broker.cluster.documents import DamagedDocument
from broker.metadata.change import Change, Credential, Entity, entity_of
from broker.metadata.image import Image
from broker.quota.client_quotas import CLIENT_ID, IP, USER, quota_text
from broker.security.password_encoder import PasswordEncoder
from broker.settings.config import BrokerConfig, TopicConfig, is_secret, with_properties
from idgen.settings import InvalidSetting

_MECHANISMS = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
_MECHANISM_NAMES = {number: name for name, number in _MECHANISMS.items()}

Update: TypeAlias = tuple[ConfigEntity, Mapping[str, str]]
AlteredEntities: TypeAlias = dict[ConfigEntity, dict[str, str | None]]
"""New values of settings by entity; None removes one."""


class EntitySettings:
    """The settings of topics that were read, and the changes that updates make of an image."""

    def __init__(self, report: Callable[[str], None], passwords: PasswordEncoder, broker_id: int) -> None:
        self._report = report
        self._passwords = passwords
        self._broker_id = str(broker_id)
        self._of_topics: dict[str, Mapping[str, str]] = {}
        self._ids: dict[str, UUID | None] = {}
        """The ids of topics whose settings were read since the topic was made."""
        self._wanted: dict[str, UUID | None] = {}
        """The ids of topics whose settings are to be read, or are being read."""

    # --- topics --------------------------------------------------------------------------------------------------

    def of_topic(self, name: str) -> Mapping[str, str]:
        return self._of_topics.get(name, {})

    def knows(self, name: str, topic_id: UUID | None) -> bool:
        """Return True if the settings were read for this topic, and not for an earlier one of the same name."""
        return name in self._ids and self._ids[name] == topic_id

    def want(self, name: str, topic_id: UUID | None) -> bool:
        """Note that the settings are to be read for this topic. Return False if that was noted before."""
        is_noted = name in self._wanted and self._wanted[name] == topic_id
        self._wanted[name] = topic_id
        return not is_noted

    def read(self, topics: Iterable[tuple[str, UUID | None]]) -> None:
        """Note that the settings of these topics were read since they were wanted."""
        for name, topic_id in topics:
            self._ids[name] = topic_id
            if self._wanted.get(name) == topic_id:
                self._wanted.pop(name, None)

    def forget(self, name: str) -> bool:
        """Forget a topic that was deleted. Return False if the settings of another of its name are to be read."""
        if name in self._wanted:
            return False
        self._of_topics.pop(name, None)
        self._ids.pop(name, None)
        return True

    # --- updates -------------------------------------------------------------------------------------------------

    def changes(self, image: Image, updates: Iterable[Update]) -> list[Change]:
        """Return the changes of the image that settings ask for, which were read from the coordinator."""
        topics = {}
        brokers, quotas, credentials = dict(image.broker_properties), dict(image.quotas), dict(image.credentials)
        for entity, settings in updates:
            if entity.entity_type == TOPIC_TYPE:
                name = str(entity.names[0])
                topic = image.topic(name)
                properties = self._topic_read(name, settings)
                if topic is not None and topic.properties != properties:
                    topics[name] = topic.with_properties(properties)
            elif entity.entity_type == BROKER_TYPE:
                brokers[entity.names[0] or ""] = self._valid(entity, self._decoded(entity, settings), _check_broker)
            else:
                self._read_quotas(entity, settings, quotas)
                self._read_credentials(entity, settings, credentials)
        brokers = {name: properties for name, properties in brokers.items() if properties}
        return [
            Change(
                topics,
                brokers if brokers != image.broker_properties else None,
                quotas if quotas != image.quotas else None,
                credentials if credentials != image.credentials else None,
            )
        ]

    def _topic_read(self, name: str, settings: Mapping[str, str]) -> Mapping[str, str]:
        self._of_topics[name] = self._valid(topic_entity(name), settings, _check_topic)
        return self._of_topics[name]

    def _decoded(self, entity: ConfigEntity, settings: Mapping[str, str]) -> Mapping[str, str]:
        """Return the settings of brokers with their passwords. Those of another broker are that broker's own secret."""
        decoded = dict(settings)
        for name, text in settings.items():
            if not is_secret(name):
                continue
            try:
                decoded[name] = self._passwords.decode(text)
            except ValueError as error:
                del decoded[name]
                if entity.names[0] in (None, self._broker_id):
                    self._report(f"{entity.path}: {name}: {error}; the setting is ignored")
        return decoded

    def _valid(
        self, entity: ConfigEntity, settings: Mapping[str, str], check: Callable[[Mapping[str, str]], object]
    ) -> dict[str, str]:
        valid = {}
        for name, value in settings.items():
            try:
                check({name: value})
                valid[name] = value
            except InvalidSetting as error:
                self._report(f"{entity.path}: {error}; the setting is ignored")
        return valid

    def _read_quotas(
        self, entity: ConfigEntity, settings: Mapping[str, str], quotas: dict[Entity, Mapping[str, float]]
    ) -> None:
        owner = _owner(entity)
        values = {}
        for name, text in settings.items():
            if name in _MECHANISMS:
                continue
            try:
                values[name] = float(text)
            except ValueError:
                self._report(f"{entity.path}: {name} is {text!r}, which is no number; the quota is ignored")
        if quotas.get(owner, {}) != values:
            quotas.pop(owner, None)
            if values:
                quotas[owner] = values

    def _read_credentials(
        self, entity: ConfigEntity, settings: Mapping[str, str], credentials: dict[tuple[str, int], Credential]
    ) -> None:
        user = entity.names[0]
        if entity.entity_type != USER_TYPE or len(entity.names) > 1 or user is None:
            return
        for name, mechanism in _MECHANISMS.items():
            credentials.pop((user, mechanism), None)
            if name not in settings:
                continue
            try:
                read = decode_scram(entity.path, settings[name])
            except DamagedDocument as error:
                self._report(f"{error}; the credential is ignored")
                continue
            credentials[user, mechanism] = Credential(read.salt, read.iterations, read.stored_key, read.server_key)


def _check_topic(properties: Mapping[str, str]) -> object:
    TopicConfig.check_names(properties)
    return TopicConfig().with_properties(properties)


def _check_broker(properties: Mapping[str, str]) -> object:
    return with_properties(BrokerConfig(), properties)


# --- quotas and their owners -----------------------------------------------------------------------------------------


def _owner(entity: ConfigEntity) -> Entity:
    """Return the owner of quotas that an entity is."""
    names = entity.names
    if entity.entity_type == IP_TYPE:
        return entity_of([(IP, names[0])])
    if entity.entity_type == CLIENT_TYPE:
        return entity_of([(CLIENT_ID, names[0])])
    return entity_of(zip((USER, CLIENT_ID), names, strict=False))


def _entity(owner: Entity) -> ConfigEntity:
    """Return the entity that an owner of quotas is."""
    names = dict(owner)
    if IP in names:
        return ip_entity(names[IP])
    if USER not in names:
        return client_entity(names[CLIENT_ID])
    return user_client_entity(names[USER], names[CLIENT_ID]) if CLIENT_ID in names else user_entity(names[USER])


# --- changes ---------------------------------------------------------------------------------------------------------


def altered_entities(image: Image, change: Change) -> AlteredEntities:
    """Return what a change asks of the settings in the coordinator, by entity: new values, and None for removals.

    They are the differences to the image, so that what another broker writes at the same time is kept. The settings of
    new topics are not among them: they are written with the topic.
    """
    altered: AlteredEntities = {}
    for name, topic in change.topics.items():
        before = image.topic(name)
        if topic is not None and before is not None and before.id == topic.id:
            _add(altered, topic_entity(name), before.properties, topic.properties)
    if change.broker_properties is not None:
        for broker in {*image.broker_properties, *change.broker_properties}:
            entity = broker_entity(int(broker) if broker else None)
            _add(altered, entity, image.broker_properties.get(broker, {}), change.broker_properties.get(broker, {}))
    if change.quotas is not None:
        for owner in {*image.quotas, *change.quotas}:
            before_texts, after_texts = (
                {name: quota_text(name, value) for name, value in quotas.get(owner, {}).items()}
                for quotas in (image.quotas, change.quotas)
            )
            _add(altered, _entity(owner), before_texts, after_texts)
    if change.credentials is not None:
        for user, mechanism in {*image.credentials, *change.credentials}:
            name = _MECHANISM_NAMES[mechanism]
            before_texts, after_texts = (
                {name: _text(credentials[user, mechanism])} if (user, mechanism) in credentials else {}
                for credentials in (image.credentials, change.credentials)
            )
            _add(altered, user_entity(user), before_texts, after_texts)
    return altered


def _add(
    altered: dict[ConfigEntity, dict[str, str | None]],
    entity: ConfigEntity,
    before: Mapping[str, str],
    after: Mapping[str, str],
) -> None:
    values: dict[str, str | None] = {name: value for name, value in after.items() if before.get(name) != value}
    values.update((name, None) for name in before if name not in after)
    if values:
        altered.setdefault(entity, {}).update(values)


def encoded(
    entity: ConfigEntity, values: Mapping[str, str | None], passwords: PasswordEncoder
) -> Mapping[str, str | None]:
    """Return new values of settings as the coordinator keeps them. Raise InvalidSetting for a password that it may not.
    """
    if entity.entity_type != BROKER_TYPE:
        return values
    return {
        name: passwords.encode(name, value) if value is not None and is_secret(name) else value
        for name, value in values.items()
    }


def merged(present: Mapping[str, str], values: Mapping[str, str | None]) -> dict[str, str]:
    """Return settings with new values, and without those that are None."""
    return {name: value for name, value in {**present, **values}.items() if value is not None}


def _text(credential: Credential) -> str:
    return encode_scram(
        ScramCredential(credential.salt, credential.stored_key, credential.server_key, credential.iterations)
    )
