"""Client properties that many may read, as those in a topology's configuration in Storm: no secret stands in them.

A secret lies in a file or a variable of the machines that use it, and the properties refer to it
(broker.security.references).
"""

from collections.abc import Mapping

from broker.client.security.settings import JAAS, PASSWORD
from broker.security.references import has_reference
from broker.security.sasl.assertion_config import PASSPHRASE
from broker.security.sasl.jaas import parse_jaas
from broker.security.sasl.token_rules import CLIENT_SECRET
from idgen.settings import InvalidSetting

SECRETS = (
    JAAS,
    PASSWORD,
    CLIENT_SECRET,
    PASSPHRASE,
    "ssl.keystore.password",
    "ssl.keystore.key",
    "ssl.key.password",
    "ssl.truststore.password",
)
"""Properties whose value is a secret, or has one."""
_SECRET_OPTIONS = ("password", "token", "clientSecret")  # of a login module


def secrets_in(properties: Mapping[str, str]) -> list[str]:
    """Return the names of the properties whose secret stands in the value itself."""
    return [name for name in SECRETS if name in properties and _is_secret(name, properties[name])]


def _is_secret(name: str, text: str) -> bool:
    if name != JAAS or not has_reference(text):
        return not has_reference(text)
    try:
        options = parse_jaas(text).options
    except ValueError:  # the whole text is a reference
        return False
    return any(option in options and not has_reference(options[option]) for option in _SECRET_OPTIONS)


def check_readable(properties: Mapping[str, str]) -> None:
    """Raise InvalidSetting, without its value, for a property whose secret stands in it."""
    for name in secrets_in(properties):
        wanted = "has a secret, which all who see the topology would read: give ${file:FILE:KEY} or ${env:NAME} for it"
        raise InvalidSetting(name, "(hidden)", wanted)


def made_readable(properties: Mapping[str, str], file: str) -> dict[str, str]:
    """Return the properties of `file` with a reference to the file in place of each secret.

    Raise InvalidSetting for text that has a secret beside a reference, because a reference is replaced once only.
    """
    secrets = secrets_in(properties)
    check_readable({name: properties[name] for name in secrets if has_reference(properties[name])})
    return dict(properties) | {name: f"${{file:{file}:{name}}}" for name in secrets}
