"""Settings as clients see them: the value, its source, and the other sources it could have come from.

Precedence is Kafka's (KIP-226): the topic's setting, this node's run-time change, the run-time change for all nodes,
the property the process was started with, the default. `synonyms` has the sources that have a value, in that order; the
first one is in effect.

A broker's setting may have several names (log.retention.ms, .minutes, .hours), each with a separate place in that
order. The entry for one of these names omits the synonyms before the first one of that name, as in Kafka.
"""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from itertools import chain
from typing import Any, NamedTuple

from broker.settings.config import DYNAMIC, INT_MAX, LISTS, TOPIC_DEFAULTS, BrokerConfig, TopicConfig, is_secret
from broker.settings.kafka_settings import (
    HONOURED,
    SERVER_NAMES,
    SYNONYMS,
    TOLD_APART,
    KafkaSetting,
    broker_setting,
    broker_settings,
    is_alterable,
    topic_setting,
    topic_settings,
)
from idgen.settings import Setting, parse_setting, settings_of


class ConfigSource(IntEnum):
    """Kafka's codes for sources (KIP-226)."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


class ConfigType(IntEnum):
    """Kafka's codes for types (KIP-569)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Synonym(NamedTuple):
    name: str
    value: str | None
    source: ConfigSource


class ConfigEntry(NamedTuple):
    """A setting. `value` is None if it is unset or secret. `source` is the source in effect, under any of its names."""

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool
    sensitive: bool
    synonyms: tuple[Synonym, ...]
    type: ConfigType
    documentation: str

    @property
    def shown_source(self) -> ConfigSource:
        """Return the source that DescribeConfigs reports."""
        return self.synonyms[0].source if self.synonyms else ConfigSource.DEFAULT


class BrokerSources(NamedTuple):
    """Sources of a broker's settings: text by name."""

    given: Mapping[str, str]
    """Properties the process was started with, under the names they were given by."""
    altered_for_all: Mapping[str, str]
    altered: Mapping[str, str]
    """Run-time changes: `altered_for_all` applies to all nodes, `altered` to this one."""


_BROKER = {setting.name: setting for setting in settings_of(BrokerConfig)}
_BROKER_DEFAULTS = {setting.field: setting.name for setting in _BROKER.values()}
_LONG = frozenset({"ms", "messages"})  # units of values that may need 64 bits


def text_of(value: Any) -> str | None:
    """Return a value in the form that properties files have. Return None for None."""
    if value is None:
        return None
    if isinstance(value, float):
        return str(value).replace("e+", "E")  # as Java writes floats
    return str(value).lower() if isinstance(value, bool) else str(value)


def type_of(setting: Setting) -> ConfigType:
    """Return the type that Kafka gives a setting of this name, or would give a setting of Flakelog."""
    row = topic_setting(setting.name) or broker_setting(setting.name)
    if row is not None:
        return ConfigType[row.type.upper()]
    kinds = getattr(setting.type, "__args__", (setting.type,))
    if bool in kinds:
        return ConfigType.BOOLEAN
    if float in kinds:
        return ConfigType.DOUBLE
    if int not in kinds:
        return ConfigType.STRING
    long = setting.unit in _LONG or setting.name.endswith("retention.bytes") or (setting.default or 0) > INT_MAX
    return ConfigType.LONG if long else ConfigType.INT


def broker_entries(configs: Iterable[object], sources: BrokerSources) -> list[ConfigEntry]:
    """Return the settings of a broker's configurations, then Kafka's other settings with their values or defaults."""
    entries = []
    for config in configs:
        for setting in settings_of(type(config)):
            synonyms = _broker_synonyms(setting, sources)
            read_only = setting.name not in DYNAMIC and not is_alterable(setting.name)
            if setting.name in TOLD_APART:
                entries += [_one_of_names(setting, name, synonyms, read_only) for name in _names_of(setting)]
            else:
                entries.append(_entry(setting, getattr(config, setting.field), synonyms, read_only))
    altered = {**sources.altered_for_all, **sources.altered}
    for row in broker_settings():
        if _is_shown(row, sources.given) or (row.standing != HONOURED and row.name in altered):
            entries.append(_unused(row, _unused_broker_synonyms(row, sources), not is_alterable(row.name)))
    for name in altered:
        row_of_listener = broker_setting(name)
        if row_of_listener is not None and row_of_listener.name != name:
            row = row_of_listener._replace(name=name, default=None)
            entry = _unused(row, _unused_broker_synonyms(row, sources), False)
            is_used = row.standing == HONOURED
            entries.append(entry._replace(documentation=f"{name} of one listener.") if is_used else entry)
    return entries


def default_entries(altered: Mapping[str, str]) -> list[ConfigEntry]:
    """Return the settings that were altered at run time for all brokers, and no others."""
    entries = []
    for name, text in altered.items():
        if name not in _BROKER:
            row = broker_setting(name)
            if row is not None:  # else stored by another version of this program
                synonyms = _unused_synonyms(row, altered, ConfigSource.DYNAMIC_DEFAULT_BROKER)[:1]
                entries.append(_unused(row, synonyms, False))
            continue
        setting, value = _BROKER[name], parse_setting(_BROKER[name], text)
        synonym = Synonym(name, _shown(setting, value), ConfigSource.DYNAMIC_DEFAULT_BROKER)
        entries.append(_entry(setting, value, (synonym,), read_only=False))
    return entries


def topic_entries(config: TopicConfig, own: Mapping[str, str], sources: BrokerSources) -> list[ConfigEntry]:
    """Return all settings of a topic. `config` has the values in effect, `own` the properties set for this topic."""
    entries = []
    for setting in settings_of(TopicConfig):
        value = getattr(config, setting.field)
        server = _BROKER[_BROKER_DEFAULTS[TOPIC_DEFAULTS[setting.field]]]
        synonyms = _broker_synonyms(server, sources)
        mine = (Synonym(setting.name, _shown(setting, value), ConfigSource.TOPIC),) if setting.name in own else ()
        entry = _entry(setting, value, (*mine, *synonyms), read_only=False)
        entries.append(entry._replace(synonyms=(*mine, *_shown_with(server.name, synonyms))))
    for row in topic_settings():
        if _is_shown(row, own):
            synonyms = _unused_synonyms(row, own, ConfigSource.TOPIC)[: row.name in own]
            if server_row := broker_setting(SERVER_NAMES.get(row.name, "")):
                synonyms += _unused_broker_synonyms(server_row, sources)
            entries.append(_unused(row, synonyms, False))
    return entries


def _is_shown(row: KafkaSetting, own: Mapping[str, str]) -> bool:
    """Return True if Kafka would show this setting, which has no effect here."""
    return row.standing != HONOURED and (row.is_shown or row.name in own)


def _unused(row: KafkaSetting, synonyms: tuple[Synonym, ...], read_only: bool) -> ConfigEntry:
    """Return the entry of a setting that has no effect here, with the value it was set to."""
    value = synonyms[0].value if synonyms else row.default
    source = synonyms[0].source if synonyms else ConfigSource.DEFAULT
    kind, note = ConfigType[row.type.upper()], f"Not used here: {row.reason}."
    return ConfigEntry(row.name, value, source, read_only, _is_secret(row), synonyms, kind, note)


def _unused_synonyms(row: KafkaSetting, given: Mapping[str, str], source: ConfigSource) -> tuple[Synonym, ...]:
    """Return the synonyms of a setting that has no effect here. `source` is the source of the `given` properties."""
    values = ((given.get(row.name), source), (row.default, ConfigSource.DEFAULT))
    synonyms = [(None if _is_secret(row) else value, where) for value, where in values if value is not None]
    return tuple(Synonym(row.name, value, where) for value, where in synonyms)


def _unused_broker_synonyms(row: KafkaSetting, sources: BrokerSources) -> tuple[Synonym, ...]:
    """Return the synonyms of a broker's setting that has no effect here."""
    altered = (
        _unused_synonyms(row._replace(default=None), properties, source)
        for properties, source in (
            (sources.altered, ConfigSource.DYNAMIC_BROKER),
            (sources.altered_for_all, ConfigSource.DYNAMIC_DEFAULT_BROKER),
        )
    )
    return (*chain.from_iterable(altered), *_unused_synonyms(row, sources.given, ConfigSource.STATIC_BROKER))


def _is_secret(row: KafkaSetting) -> bool:
    return row.type == "password" or is_secret(row.name)


def _names_of(setting: Setting) -> tuple[str, ...]:
    """Return the names under which Kafka's broker reports the setting. The first one that is set is in effect."""
    others = SYNONYMS[setting.name] if setting.name in TOLD_APART else ()
    return setting.name, *(name for name, _ in others)


def _shown_with(name: str, synonyms: tuple[Synonym, ...]) -> tuple[Synonym, ...]:
    first = next((at for at, synonym in enumerate(synonyms) if synonym.name == name), len(synonyms))
    return synonyms[first:]


def _one_of_names(setting: Setting, name: str, synonyms: tuple[Synonym, ...], read_only: bool) -> ConfigEntry:
    """Return a broker's setting under one of its names. It is unset if the setting was made under another name."""
    shown = _shown_with(name, synonyms)
    entry = _entry(setting, None, shown, read_only)._replace(name=name, value=shown[0].value if shown else None)
    row = broker_setting(name)
    if name == setting.name or row is None:
        return entry
    note = f"Kafka's other name of {setting.name}, in another unit or as its default."
    return entry._replace(read_only=True, type=ConfigType[row.type.upper()], documentation=note)


def _broker_synonyms(setting: Setting, sources: BrokerSources) -> tuple[Synonym, ...]:
    ranked_sources = (
        (sources.altered, ConfigSource.DYNAMIC_BROKER),
        (sources.altered_for_all, ConfigSource.DYNAMIC_DEFAULT_BROKER),
        (sources.given, ConfigSource.STATIC_BROKER),
    )
    names = _names_of(setting)
    synonyms = [
        Synonym(name, _as_given(setting, name, properties[name]), source)
        for properties, source in ranked_sources
        for name in names
        if name in properties
    ]
    last = broker_setting(names[-1]) if len(names) > 1 else None
    if last is not None:
        synonyms.append(Synonym(last.name, last.default, ConfigSource.DEFAULT))
    elif setting.default is not None:
        synonyms.append(Synonym(setting.name, _shown(setting, setting.default), ConfigSource.DEFAULT))
    return tuple(synonyms)


def _as_given(setting: Setting, name: str, text: str) -> str | None:
    return _shown(setting, parse_setting(setting, text)) if name == setting.name else text


def _shown(setting: Setting, value: Any) -> str | None:
    if is_secret(setting.name):
        return None
    text = text_of(value)
    if text is None or setting.name not in LISTS:
        return text
    return ",".join(part.strip() for part in text.split(",") if part.strip())


def _entry(setting: Setting, value: Any, synonyms: tuple[Synonym, ...], read_only: bool) -> ConfigEntry:
    return ConfigEntry(
        setting.name,
        _shown(setting, value),
        synonyms[0].source if synonyms else ConfigSource.DEFAULT,
        read_only,
        is_secret(setting.name),
        synonyms,
        type_of(setting),
        setting.doc,
    )
