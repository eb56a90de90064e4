"""The security of a broker as a client of other brokers, from the settings of the listener that brokers use.

As in Kafka the listener's keys serve both sides: its key store is the broker's certificate as a client too, and the
user of its JAAS text is the user as which the broker logs in.
"""

from collections.abc import Mapping

from broker.client.security import settings as of_clients
from broker.client.security.settings import SecuritySettings, parse_security
from broker.security.listener_settings import names_of_listener, properties_of_listener
from broker.security.sasl.config import jaas_of, sasl_of, tokens_of
from broker.security.sasl.exchange import OAUTHBEARER
from broker.security.tls_config import TLS_SETTINGS
from flakelog.config import ServerConfig
from flakelog.listeners import PLAINTEXT, SASL_PLAINTEXT, SASL_SSL, SSL
from idgen.settings import InvalidSetting

MECHANISM = "sasl.mechanism.inter.broker.protocol"
_TLS = (*of_clients.TLS_SETTINGS, "ssl.endpoint.identification.algorithm")


def security_of_brokers(server: ServerConfig, properties: Mapping[str, str]) -> SecuritySettings | None:
    """Return how brokers connect to each other; None in plain text. Raise InvalidSetting."""
    listener = server.inter_broker_listener
    protocol = server.protocols[listener]
    if protocol == PLAINTEXT:
        return None
    names: dict[str, str] = {}
    given = {of_clients.PROTOCOL: protocol}
    if protocol in (SSL, SASL_SSL):
        names |= names_of_listener(listener, properties, TLS_SETTINGS)
        own = properties_of_listener(listener, properties, TLS_SETTINGS)
        given |= {name: own[name] for name in _TLS if name in own}
    if protocol in (SASL_PLAINTEXT, SASL_SSL):
        mechanism = properties.get(MECHANISM, server.sasl_mechanism_inter_broker_protocol)
        _check_mechanism(listener, mechanism, properties)
        name, text = jaas_of(listener, mechanism, properties)
        names |= {of_clients.MECHANISM: MECHANISM, of_clients.JAAS: name}
        given[of_clients.MECHANISM] = mechanism
        if text is not None:
            given[of_clients.JAAS] = text
        if mechanism == OAUTHBEARER:
            for setting, (name, value) in tokens_of(listener, properties).items():
                names[setting], given[setting] = name, value
    try:
        return parse_security(given)
    except InvalidSetting as error:
        raise InvalidSetting(names.get(error.name, error.name), error.value, error.wanted) from None


def _check_mechanism(listener: str, mechanism: str, properties: Mapping[str, str]) -> None:
    """Raise InvalidSetting unless the listener of brokers takes logins by their mechanism."""
    enabled = sasl_of(listener, properties).mechanisms
    if mechanism not in enabled:
        wanted = f"must be one of sasl.enabled.mechanisms of the listener of brokers, {listener}: {', '.join(enabled)}"
        raise InvalidSetting(MECHANISM, mechanism, wanted)
