"""Settings from a properties file, the environment and the command line, with a verdict on each.

An unknown setting is refused by name.

    --set  over  FLAKELOG_NAME  over  the file  over  the settings of a mode (--dev)  over  the default

A value may refer to a secret that lies elsewhere, as `${file:FILE:KEY}` (broker.security.references). References are
replaced where the properties are collected; properties that are ignored keep theirs.

Settings that a command fixes (`flakelog idgen` has no broker) go over all of these. A name of Kafka's that no dataclass
here has is looked up in broker.settings.kafka_settings: it is another name for one of our settings, ignored with a
reason, or refused with an alternative.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from broker.security.listener_settings import HTTP, IDS, PORTS, port_setting, split_name
from broker.security.references import has_reference, resolve
from broker.security.sasl.assertion_config import AssertionConfig
from broker.security.sasl.config import JAAS, SASL_SETTINGS, ListenerSasl, SaslConfig, of_one_mechanism, sasl_of
from broker.security.tls_config import TLS_SETTINGS, TlsConfig, tls_of
from broker.settings.config import BrokerConfig, ListenerLimits, default_name, is_secret
from broker.settings.group_config import GroupConfig
from broker.settings.transaction_config import TransactionConfig
from flakelog.config import ServerConfig
from flakelog.inter_broker import security_of_brokers
from flakelog.listeners import parse_listeners
from idgen.config import IdgenConfig
from idgen.properties import parse_properties
from idgen.settings import InvalidSetting, Setting, from_properties, parse_bool, parse_setting, settings_of

CONFIGS = (
    ServerConfig, BrokerConfig, TlsConfig, SaslConfig, AssertionConfig, GroupConfig, TransactionConfig, IdgenConfig
)  # fmt: skip
ENVIRONMENT_PREFIX = "FLAKELOG_"
HIDDEN = "(hidden)"  # in place of a password
LISTENERS = ServerConfig().listeners
HONOURED, IGNORED, REFUSED, UNKNOWN = "honoured", "ignored", "refused", "unknown"


class UnknownSetting(InvalidSetting):
    """A name that is not a setting; the message suggests the nearest one."""

    def __init__(self, name: str) -> None:
        from broker.settings.kafka_settings import nearest

        near, default = nearest(name, [*names(), *port_settings()]), default_name(name)
        wanted = f"there is no such setting; did you mean {near}?" if near else "there is no such setting"
        if default is not None:
            wanted = f"it is a topic's; the default for all topics is {default}"
        ValueError.__init__(self, f"{name}: {wanted}")
        self.name = name


class InvalidFile(InvalidSetting):
    """A file that is not a properties file, because it is not UTF-8."""

    def __init__(self, message: str) -> None:
        ValueError.__init__(self, message)
        self.name = ""


class Given(NamedTuple):
    """A property as it was given; `origin` is "server.properties:12", "--set", or a variable's name."""

    name: str
    text: str
    origin: str


@contextmanager
def errors_with_origin(given: Mapping[str, Given], default: str = "") -> Iterator[None]:
    """Let an InvalidSetting say where its setting was given, and by which other name.

    `given` has the properties by the setting that each is; `default` is said of a setting that is missing there.
    """
    try:
        yield
    except InvalidSetting as error:
        raise _with_origin(error, given.get(error.name, Given(error.name, "", default))) from None


def _with_origin(error: InvalidSetting, given: Given) -> InvalidSetting:
    """Return the error with the origin of its setting, unless that is --set, which its user has just typed."""
    if given.origin in ("", "--set"):
        return error
    return error.at(given.origin if given.name == error.name else f"{given.origin}, as {given.name}")


class Verdict(NamedTuple):
    """The verdict on one property. An honoured one is the setting `target` with the value `text`."""

    given: Given
    standing: str
    reason: str
    target: str = ""
    text: str = ""


def masked(name: str, text: str) -> str:
    """Return a property's text as it may be shown: a password is hidden."""
    from broker.settings.kafka_settings import broker_setting

    row = broker_setting(name)
    hidden = is_secret(name) or (row is not None and row.type == "password")
    return HIDDEN if hidden else text


@lru_cache
def server_settings() -> dict[str, Setting]:
    """Return all settings of a server process, by name."""
    return {setting.name: setting for config in CONFIGS for setting in settings_of(config)}


def of_one_listener(name: str) -> tuple[str, Setting] | None:
    """Split a name like listener.name.inside.max.connections into its listener ("INSIDE") and setting.

    Returns None for any other name, and for settings that hold for all listeners.
    """
    parts = split_name(name)
    if parts is None:
        return None
    listener, own = parts
    of_mechanism = of_one_mechanism(own)
    setting = server_settings().get(own if of_mechanism is None else of_mechanism[1])
    if setting is None:
        return None
    if of_mechanism is not None and setting.name == JAAS:
        setting = setting._replace(check=None)  # that of the name without a listener refuses it
    fits = setting.field in ListenerLimits._fields or own in TLS_SETTINGS | SASL_SETTINGS or of_mechanism is not None
    return (listener, setting._replace(name=name)) if fits else None


@lru_cache
def port_settings() -> dict[str, Setting]:
    """Return the settings of TLS of the HTTP port and of the id service, by name."""
    of_all = settings_of(TlsConfig)
    named = [of_one._replace(name=port_setting(port, of_one.name)) for port in PORTS for of_one in of_all]
    return {setting.name: setting for setting in named}


def names() -> list[str]:
    """Return the names of all settings."""
    return sorted(server_settings())


def variable_of(name: str) -> str:
    """Return the environment variable of a setting, without a second "flakelog": FLAKELOG_LOG_SEGMENT_BYTES."""
    return ENVIRONMENT_PREFIX + name.removeprefix("flakelog.").replace(".", "_").upper()


# --- sources ---------------------------------------------------------------------------------------------------------


def read_properties(text: str, where: str) -> list[Given]:
    """Parse Java properties; raise InvalidSetting."""
    return [Given(name, value, f"{where}:{line}") for name, value, line in parse_properties(text, where)]


def read_file(file: Path | None) -> list[Given]:
    """Return the properties of a file, and none without a file. Raise InvalidSetting, InvalidFile or OSError."""
    if file is None:
        return []
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidFile(f"{file} is no properties file: byte {error.start + 1} of it is no UTF-8") from None
    return read_properties(text, str(file))


def read_assignments(assignments: Iterable[str]) -> list[Given]:
    """Parse `name=value` arguments of the command line; raise InvalidSetting."""
    given_values = []
    for assignment in assignments:
        name, sign, value = assignment.partition("=")
        if not sign or not name.strip():
            raise InvalidSetting("--set", assignment, "must be name=value")
        given_values.append(Given(name.strip(), value.strip(), "--set"))
    return given_values


def read_environment(environment: Mapping[str, str]) -> list[Given]:
    """Return the settings in FLAKELOG_ variables; skip unknown names, because other programs may own such variables."""
    mine = {name: text for name, text in environment.items() if name.startswith(ENVIRONMENT_PREFIX)}
    variables = {variable_of(name): name for name in (*server_settings(), *port_settings())} if mine else {}
    if mine.keys() - variables.keys():
        from broker.settings.kafka_settings import broker_settings

        variables = {variable_of(row.name): row.name for row in broker_settings()} | variables
    return [
        Given(variables[variable], text.strip(), variable) for variable, text in mine.items() if variable in variables
    ]


def misspelt_variables(environment: Mapping[str, str]) -> list[str]:
    """Return a warning for each FLAKELOG_ variable whose name is nearly, but not exactly, that of a setting."""
    wanted = [variable_of(name) for name in (*server_settings(), *port_settings())]
    taken = {given.origin for given in read_environment(environment)}
    lines = []
    for name in environment:
        if name.startswith(ENVIRONMENT_PREFIX) and name not in taken:
            near = get_close_matches(name, wanted, 1, 0.85)
            lines += [f"{name} is no setting, and is not heeded; did you mean {near[0]}?"] if near else []
    return lines


# --- verdicts --------------------------------------------------------------------------------------------------------


class Properties:
    """All given properties, layer over layer, with the verdict on each. `collect` makes it."""

    def __init__(self, layers: Iterable[Iterable[Given]]) -> None:
        self.verdicts: list[Verdict] = []
        """Verdicts in the order in which the properties were given; if a setting is given twice, the last counts."""
        self.texts: dict[str, str] = {}
        """The value of each given setting, as text."""
        self.given: dict[str, Given] = {}
        """The property by which each setting was given."""
        for layer in layers:
            self._take(_verdicts(list(layer)))

    def _take(self, verdicts: list[Verdict]) -> None:
        self.verdicts += verdicts
        for verdict in verdicts:
            if verdict.standing == HONOURED:
                self.texts[verdict.target] = verdict.text
                self.given[verdict.target] = verdict.given

    def check(self) -> None:
        """Raise InvalidSetting or UnknownSetting for the first property that is refused or unknown."""
        for given, standing, reason, *_ in self.verdicts:
            if standing == UNKNOWN:
                raise _with_origin(UnknownSetting(given.name), given)
            if standing == REFUSED:
                raise _with_origin(InvalidSetting(given.name, masked(given.name, given.text), reason), given)

    def settings(self) -> "Settings":
        """Return the configurations of these properties. Raise InvalidSetting, which says where a value was given."""
        with errors_with_origin(self.given):
            return Settings(self.texts, self.shown, self.given)

    @property
    def origins(self) -> dict[str, str]:
        """Where each setting was given: "server.properties:12", "--set", or a variable's name."""
        return {name: given.origin for name, given in self.given.items()}

    @property
    def ignored(self) -> list[str]:
        """The names of ignored properties."""
        return sorted(self.ignored_texts)

    @property
    def ignored_texts(self) -> dict[str, str]:
        return {verdict.given.name: verdict.given.text for verdict in self.verdicts if verdict.standing == IGNORED}

    @property
    def shown(self) -> dict[str, str]:
        """The given properties as clients see them.

        Settings in TOLD_APART have the names they were given by, because Kafka describes each name separately.
        """
        from broker.settings.kafka_settings import TOLD_APART

        given = {name: self.given[name] for name in TOLD_APART if name in self.texts}
        ours = {name: text for name, text in self.texts.items() if name not in given}
        return {**self.ignored_texts, **ours, **{given_value.name: given_value.text for given_value in given.values()}}


def collect(
    file: Path | None,
    assignments: Iterable[str] = (),
    environment: Mapping[str, str] | None = None,
    mode: Iterable[Given] = (),
    fixed: Iterable[Given] = (),
) -> Properties:
    """Collect all properties and check their names; raise InvalidSetting, UnknownSetting, InvalidFile or OSError."""
    properties = gather(file, assignments, environment, mode, fixed)
    properties.check()
    return properties


def gather(
    file: Path | None,
    assignments: Iterable[str] = (),
    environment: Mapping[str, str] | None = None,
    mode: Iterable[Given] = (),
    fixed: Iterable[Given] = (),
) -> Properties:
    """Collect all properties, with errors in them as verdicts.

    A reference to nothing is such an error. Raises InvalidSetting only for text that is not name=value; raises
    InvalidFile and OSError.
    """
    variables = read_environment(environment or {})
    return Properties([mode, read_file(file), variables, read_assignments(assignments), fixed])


def _verdicts(given: list[Given]) -> list[Verdict]:
    layer, unresolved = {}, []
    for value in given:
        try:
            layer[value.name] = _with_secrets(value)
        except InvalidSetting as error:
            place = error.value if error.name == value.name else error.name  # the reference, or a line of its file
            unresolved.append(Verdict(value, REFUSED, f"{place}: {error.wanted}"))
    return unresolved + [_verdict(value, layer) for value in layer.values()]


def _with_secrets(given: Given) -> Given:
    """Return the property with what its references stand for, if it is honoured. Raise InvalidSetting."""
    if not has_reference(given.text) or not _is_honoured(given.name):
        return given
    return given._replace(text=resolve(given.name, given.text, _read_secret, os.environ))


def _read_secret(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")


def _is_honoured(name: str) -> bool:
    """Return True for a setting of ours, or another name of one."""
    if name in server_settings() or of_one_listener(name) is not None:
        return True
    from broker.settings.kafka_settings import broker_setting

    row = broker_setting(name)
    return row is not None and row.standing == HONOURED


def _verdict(given: Given, layer: Mapping[str, Given]) -> Verdict:
    if given.name in server_settings() or of_one_listener(given.name) is not None:
        return Verdict(given, HONOURED, "", given.name, given.text)
    from broker.settings.kafka_settings import broker_setting

    row = broker_setting(given.name)
    if row is None:
        return Verdict(given, UNKNOWN, str(UnknownSetting(given.name)).partition(": ")[2])
    if row.standing == HONOURED:
        return _verdict_on_synonym(given, layer)
    standing = row.standing_of(given.text)
    return Verdict(given, standing, row.reason if standing == REFUSED or not row.harmless else "it asks for nothing")


def _verdict_on_synonym(given: Given, layer: Mapping[str, Given]) -> Verdict:
    """Return the verdict on another name of one of our settings; a name that Kafka prefers may be in the same layer."""
    from broker.settings.kafka_settings import SYNONYMS, broker_setting

    target = next((name for name, others in SYNONYMS.items() if given.name in dict(others)), given.name)
    if target == given.name:
        return Verdict(given, REFUSED, f"settings hold for all listeners; set {given.name.split('.', 3)[-1]}")
    ranks = [target, *dict(SYNONYMS[target])]
    # A parent of several brokers adds --set node.id to its own arguments, so there node.id goes before.
    is_clash = given.name == "broker.id" and target in layer and layer[target].text != given.text
    if is_clash and given.origin != "--set":
        return Verdict(given, REFUSED, f"{target}={layer[target].text} is given too; give one of both")
    before = next(name for name in ranks if name in layer)
    if before != given.name:
        return Verdict(given, IGNORED, f"{before} is given too, and goes before it")
    row = broker_setting(given.name)
    factor = dict(SYNONYMS[target])[given.name]
    wrong = row.refusal(given.text) if row else None
    if wrong is not None:
        return Verdict(given, REFUSED, wrong)
    return Verdict(given, HONOURED, f"it is {target}", target, _times(given.text, factor))


def _times(text: str, factor: int) -> str:
    """Convert a number from Kafka's unit to ours; keep a negative one, because it is a code word ("unlimited")."""
    if factor == 1:
        return text
    return str(int(text) * factor if int(text) > 0 else int(text))


class Settings:
    """All configurations of one process, made from one set of properties."""

    def __init__(
        self,
        properties: Mapping[str, str],
        shown: Mapping[str, str] | None = None,
        given: Mapping[str, Given] | None = None,
    ) -> None:
        self.properties = dict(properties)
        self.shown = dict(properties if shown is None else shown)
        """The given properties as clients see them."""
        self.given = dict(given or {})
        """The property by which each setting was given, as far as that is known."""
        self.server = from_properties(ServerConfig, properties)
        self.broker = from_properties(BrokerConfig, properties)
        self.tls = from_properties(TlsConfig, properties)
        self.listener_limits = listener_limits(properties, self.server.listeners)
        self.listener_tls = {name: tls_of(name, properties) for name in self.server.tls_listeners}
        """The TLS settings of the listeners that speak it, by name."""
        self.sasl = from_properties(SaslConfig, properties)
        self.assertion = from_properties(AssertionConfig, properties)
        self.listener_sasl = listener_sasl(properties)
        """The SASL settings of the listeners that ask who a client is, by name."""
        self.port_tls = port_tls(properties)
        """The TLS settings of the HTTP port and the id service, where they speak it, by "http" and "ids"."""
        self.group = from_properties(GroupConfig, properties)
        self.transaction = from_properties(TransactionConfig, properties)
        self.idgen = from_properties(IdgenConfig, properties)
        if self.server.zookeeper_set_acl:
            self.idgen.check_zookeeper_identity("zookeeper.set.acl")
        check_inter_broker(properties)

    def value_of(self, setting: Setting) -> object:
        """Return the value in force of one of `server_settings()`."""
        configs: tuple[object, ...] = (
            self.server, self.broker, self.tls, self.sasl, self.assertion, self.group, self.transaction, self.idgen
        )  # fmt: skip
        return next(getattr(config, setting.field) for config in configs if hasattr(config, setting.field))


def port_tls(properties: Mapping[str, str]) -> dict[str, TlsConfig]:
    """Return the TLS settings of the ports "http" and "ids", where these are open and speak it; raise InvalidSetting.
    """
    server, idgen = from_properties(ServerConfig, properties), from_properties(IdgenConfig, properties)
    speaks = {
        HTTP: server.http_ssl_enable and server.http_address is not None,
        IDS: idgen.ids_ssl_enable and idgen.ids_address is not None,
    }
    return {port: tls_of(port, properties) for port in PORTS if speaks[port]}


def listener_sasl(properties: Mapping[str, str]) -> dict[str, ListenerSasl]:
    """Return the SASL settings of the listeners that ask who a client is, by name; raise InvalidSetting."""
    server = from_properties(ServerConfig, properties)
    return {name: sasl_of(name, properties, name in server.tls_listeners) for name in server.sasl_listeners}


def check_inter_broker(properties: Mapping[str, str]) -> None:
    """Raise InvalidSetting if the brokers of a cluster could not connect to each other."""
    server = from_properties(ServerConfig, properties)
    if server.zookeeper_connect and server.broker_listeners:
        security_of_brokers(server, properties)


def listener_limits(properties: Mapping[str, str], listeners: str | None) -> dict[str, ListenerLimits]:
    """Return the limits that are set for single listeners, by name; raise InvalidSetting.

    `listeners` is the setting of that name, None for its default. Limits of a controllers' listener are accepted and
    have no effect, because it is not opened.
    """
    by_listener: dict[str, ListenerLimits] = {}
    for name, text in properties.items():
        of_one = of_one_listener(name)
        if of_one is not None:
            listener, setting = of_one
            names = [parsed.name for parsed in parse_listeners(LISTENERS if listeners is None else listeners)]
            wrong = wrong_with(name, text)
            if listener in PORTS:
                wrong = wrong or _unused_by_port(listener, properties)
            elif listener not in names:
                wrong = f"there is no such listener; listeners has {', '.join(names) or 'none'}"
            if wrong is not None:
                raise InvalidSetting(name, masked(name, text), wrong)
            if setting.field in ListenerLimits._fields:
                limits = by_listener.get(listener, ListenerLimits())
                by_listener[listener] = limits._replace(**{setting.field: parse_setting(setting, text)})
    return by_listener


def _unused_by_port(port: str, properties: Mapping[str, str]) -> str | None:
    enable = port_setting(port, "ssl.enable")
    is_used = parse_bool(enable, properties.get(enable, "false"))
    return None if is_used else f"needs {enable}=true, else nothing would be encrypted"


def wrong_with(name: str, text: str) -> str | None:
    """Return why a value is invalid on its own, or None; `name` is of `server_settings()`, or of one listener."""
    of_one = of_one_listener(name)
    setting = server_settings()[name] if of_one is None else of_one[1]
    try:
        value = parse_setting(setting, text)
    except InvalidSetting as error:
        return str(error).removeprefix(f"{name}={text}: ")
    return setting.check(value) if setting.check and value is not None else None
