"""SHELL (files): a client's security as settings of librdkafka, for the clients that are made of it.

Keys and certificates go to librdkafka as PEM text in memory, whatever their stores are. Secrets are in the returned
settings only, which no log shows.
"""

import time
from typing import Any

from broker.client.security.client_security import ClientSecurity
from broker.client.security.settings import HTTPS
from broker.security.cipher_suites import SERVED
from broker.security.sasl.exchange import OAUTHBEARER
from idgen.settings import InvalidSetting

TOKEN_SECONDS = 300.0  # how long a token of a text or a file is used before it is read again


def librdkafka_security(security: ClientSecurity | None) -> dict[str, Any]:
    """Return the settings of librdkafka. Raise InvalidSetting for a setting that librdkafka does not have."""
    if security is None:
        return {}
    settings: dict[str, Any] = {"security.protocol": security.settings.protocol}
    if security.is_tls:
        settings |= _tls(security)
    if security.asks_login:
        settings |= _login(security)
    return settings


def _tls(security: ClientSecurity) -> dict[str, Any]:
    from cryptography.hazmat.primitives.serialization import Encoding

    from broker.client.security.contexts import read_material

    tls = security.settings.tls
    if set(tls.offer.versions) != set(SERVED):
        wanted = "librdkafka cannot choose the versions of TLS; leave it out for a Producer"
        raise InvalidSetting("ssl.enabled.protocols", tls.ssl_enabled_protocols, wanted)
    material = read_material(security.settings)
    settings = {"ssl.endpoint.identification.algorithm": HTTPS if security.settings.checks_name else "none"}
    if tls.offer.suites:
        settings["ssl.cipher.suites"] = ":".join(tls.offer.suites)
    if material.authorities:
        pems = [authority.public_bytes(Encoding.PEM).decode() for authority in material.authorities]
        settings["ssl.ca.pem"] = "".join(pems)
    if material.own is not None:
        settings["ssl.key.pem"] = material.own.key_pem().decode()
        settings["ssl.certificate.pem"] = material.own.chain_pem().decode()
    return settings


def _login(security: ClientSecurity) -> dict[str, Any]:
    settings: dict[str, Any] = {"sasl.mechanism": security.settings.mechanism}
    if security.settings.mechanism != OAUTHBEARER:
        credentials = security.settings.credentials
        return settings | {"sasl.username": credentials.user, "sasl.password": credentials.password}
    function = security.token_function
    settings["oauth_cb"] = function if function is not None else lambda _: _token_for_a_while(security)
    return settings


def _token_for_a_while(security: ClientSecurity) -> tuple[str, float]:
    return security.token(), time.time() + TOKEN_SECONDS
