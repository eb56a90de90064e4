"""SHELL (files): a client's security as settings of librdkafka, for the clients that are made of it.

Keys and certificates go to librdkafka as PEM text in memory, whatever their stores are. Secrets are in the returned
settings only, which no log shows.
"""

import time
from typing import Any

from broker.client.errors import NotAuthenticated
from broker.client.security.client_security import ClientSecurity
from broker.client.security.settings import HTTPS
from broker.client.security.token_request import end_of
from broker.security.cipher_suites import SERVED
from broker.security.sasl.exchange import OAUTHBEARER
from idgen.settings import InvalidSetting

TOKEN_SECONDS = 300.0  # how long a token is used, at most, before it is read or fetched again


def librdkafka_security(security: ClientSecurity | None) -> dict[str, Any]:
    """Return the settings of librdkafka.

    Raise InvalidSetting for a setting that librdkafka does not have, and NotAuthenticated if there is no token now,
    because a client of librdkafka would wait 10 s for a token and hide the reason.
    """
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
    function = security.token_function or (lambda _: _token_for_a_while(security))
    try:
        first = [function("")]
        if first[0][1] <= time.time():
            raise ValueError(f"it has expired, {round(time.time() - first[0][1])} s ago")
    except Exception as error:  # the function may be the user's
        raise NotAuthenticated("login", f"no token of {OAUTHBEARER}: {error}") from error
    settings["oauth_cb"] = lambda text: first.pop() if first else function(text)
    return settings


def _token_for_a_while(security: ClientSecurity) -> tuple[str, float]:
    token, latest_s = security.token(), time.time() + TOKEN_SECONDS
    end_s = end_of(token)
    return token, latest_s if end_s is None else min(end_s, latest_s)
