"""Cipher suites and protocol versions of TLS by Java's names, which Kafka's settings use, and by OpenSSL's.

Java's names are those of IANA's registry (https://www.iana.org/assignments/tls-parameters). OpenSSL has names of its
own for the suites of TLS 1.2: `TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256` is `ECDHE-RSA-AES128-GCM-SHA256`.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

TLS_1_2, TLS_1_3 = "TLSv1.2", "TLSv1.3"
SERVED = (TLS_1_2, TLS_1_3)
SUITES_OF_TLS_1_3 = ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256")
"""The suites of TLS 1.3 that OpenSSL offers. Python cannot choose among them."""
_SUITE_OF_TLS_1_2 = re.compile(
    r"TLS_(ECDHE|DHE)_(ECDSA|RSA)_WITH_(AES_(?:128|256)_(?:GCM|CBC)|CHACHA20_POLY1305)_(SHA\d*)"
)


class Offer(NamedTuple):
    """What a listener offers: the versions of TLS, and the suites of TLS 1.2 by OpenSSL's names, or its defaults."""

    versions: tuple[str, ...]
    suites: tuple[str, ...]


def offer(protocols: Sequence[str], suites: Sequence[str]) -> Offer:
    """Return the offer for `ssl.enabled.protocols` and `ssl.cipher.suites`.

    A version without a suite is not offered, as in Java. Raise ValueError, which says what is right, for a version or a
    suite that is not served, and if nothing is left to offer.
    """
    for protocol in protocols:
        if protocol not in SERVED:
            raise ValueError(f"{protocol} is not served: give {TLS_1_2}, {TLS_1_3} or both")
    if not suites:
        return Offer(tuple(protocols), ())
    versions = []
    if TLS_1_2 in protocols and any(suite not in SUITES_OF_TLS_1_3 for suite in suites):
        versions.append(TLS_1_2)
    missing = [suite for suite in SUITES_OF_TLS_1_3 if suite not in suites]
    if TLS_1_3 in protocols and len(missing) < len(SUITES_OF_TLS_1_3):
        if missing:
            raise ValueError(
                f"Python cannot choose among the suites of {TLS_1_3}: add {', '.join(missing)}, or name none of "
                f"{', '.join(SUITES_OF_TLS_1_3)}, which turns {TLS_1_3} off"
            )
        versions.append(TLS_1_3)
    if not versions:
        raise ValueError(f"none of these suites belongs to {' or '.join(protocols)}")
    return Offer(tuple(versions), tuple(_openssl_name(suite) for suite in suites if suite not in SUITES_OF_TLS_1_3))


def _openssl_name(suite: str) -> str:
    """Return OpenSSL's name of a suite of TLS 1.2. Raise ValueError."""
    parts = _SUITE_OF_TLS_1_2.fullmatch(suite)
    if parts is None:
        raise ValueError(f"{suite} is not served: give suites such as TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256")
    exchange, signature, cipher, digest = parts.groups()
    if cipher == "CHACHA20_POLY1305":
        return f"{exchange}-{signature}-CHACHA20-POLY1305"
    bits, mode = cipher.removeprefix("AES_").split("_")
    return "-".join([exchange, signature, f"AES{bits}", *(["GCM"] if mode == "GCM" else []), digest])
