"""What protects a test's broker: a throw-away certificate authority, the broker's certificate, and a user."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flakelog.testing.authority import Authority

PLAINTEXT = "PLAINTEXT"
PROTOCOLS = PLAINTEXT, "SSL", "SASL_PLAINTEXT", "SASL_SSL"
MECHANISMS = "SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"
USER, PASSWORD = "tester", "tester-secret"
_LOGIN = f'required username="{USER}" password="{PASSWORD}";'
_MODULES = "org.apache.kafka.common.security"


class BrokerSecurity:
    """The security of a broker whose listener has this protocol. `prepare` writes its files."""

    def __init__(self, protocol: str) -> None:
        if protocol not in PROTOCOLS:
            raise ValueError(f"security={protocol!r}: give one of {', '.join(PROTOCOLS)}")
        self.protocol = protocol
        self._authority: Authority | None = None
        self._client_keys: dict[str, str] = {}

    @property
    def is_tls(self) -> bool:
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def asks_login(self) -> bool:
        return self.protocol in ("SASL_PLAINTEXT", "SASL_SSL")

    def prepare(self, directory: Path) -> None:
        """Make the authority and what it signs, and write the files that the broker reads."""
        if self.is_tls:
            from flakelog.testing.authority import Authority

            self._authority = Authority()
            self._authority.issue("broker").write_pem(directory / "broker.pem")
            self._authority.write_pem(directory / "authority.pem")
            own = self._authority.issue(USER)
            self._client_keys = {"ssl.keystore.key": own.key_pem(), "ssl.keystore.certificate.chain": own.chain_pem()}
        if self.asks_login:
            (directory / "password").write_text(PASSWORD)

    def settings(self, directory: Path) -> dict[str, str]:
        """Return the settings of a broker."""
        settings: dict[str, str] = {}
        if self.is_tls:
            settings |= {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(directory / "broker.pem"),
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(directory / "authority.pem"),
                "ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/,DEFAULT",
            }
        if self.asks_login:
            jaas = f"{_MODULES}.plain.PlainLoginModule required user_{USER}=\"{PASSWORD}\";"
            settings |= {
                "sasl.enabled.mechanisms": ",".join(MECHANISMS),
                f"listener.name.{self.protocol.lower()}.plain.sasl.jaas.config": jaas,
                "super.users": f"User:{USER}",
            }
        return settings

    def arguments(self, directory: Path) -> list[str]:
        """Return the arguments of a broker's start that add the user."""
        if not self.asks_login:
            return []
        added = [name for name in MECHANISMS if name != "PLAIN"]
        file = directory / "password"
        return [part for name in added for part in ("--add-scram", f"{name}=[name={USER},password-file={file}]")]

    def client_properties(self, mechanism: str = MECHANISMS[0]) -> dict[str, str]:
        """Return the properties of a client, under the names of Kafka's clients; {} for a plain broker."""
        if self.protocol == PLAINTEXT:
            return {}
        properties = {"security.protocol": self.protocol}
        if self._authority is not None:
            properties |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": self._authority.pem()}
            if not self.asks_login:
                properties |= {"ssl.keystore.type": "PEM", **self._client_keys}
        if self.asks_login:
            module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
            properties |= {"sasl.mechanism": mechanism, "sasl.jaas.config": f"{_MODULES}.{module} {_LOGIN}"}
        return properties
