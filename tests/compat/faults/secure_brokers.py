"""Three brokers that reach each other over SASL_SSL, with an authorizer.

Clients come over a plain listener, as User:ANONYMOUS, which has all rights on topics, groups and transactions, and none
on the cluster. The user `broker` is a super user, and so is `admin`, who logs in at the listener of brokers.
"""

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.compat.faults.replicated_brokers import NUMBERS, ReplicatedServers
from tests.compat.sasl_users import jaas
from tests.compat.stock_clients import QUIET
from tests.compat.tls_files import TlsFiles
from tests.patience import SECONDS

SCRAM = "SCRAM-SHA-512"
JAAS = "listener.name.brokers.scram-sha-512.sasl.jaas.config"
BROKER, ADMIN, STRANGER = "broker", "admin", "stranger"
SESSION_MS = 3_000
"""How long a login between brokers lasts, so that each test has some that are renewed (KIP-368)."""
PLAIN_PROTOCOLS = "PLAINTEXT:PLAINTEXT,BROKERS:SASL_SSL"


def password_of(user):
    return f"marked-secret-of-{user}"


class SecureServers(ReplicatedServers):
    """Three servers with one ZooKeeper. `settings` replace those of secure brokers."""

    def __init__(self, directory, zookeeper, stack, settings=None, **more):
        self.files = TlsFiles(directory / "tls")
        self._passwords = directory / "passwords"
        self._passwords.mkdir()
        for number in NUMBERS:
            self.renew_certificate(number)
            self.trust(number, self.files.authority)
        own_settings = {
            number: {
                "ssl.keystore.location": str(self._certificate(number)),
                "ssl.truststore.location": str(self._trusted(number)),
            }
            for number in NUMBERS
        }
        arguments = [part for user in (BROKER, ADMIN, STRANGER) for part in ("--add-scram", self._added(user))]
        secure = self.secure_settings() | (settings or {})
        super().__init__(
            directory, zookeeper, stack, settings=secure, own_settings=own_settings, arguments=arguments, **more
        )
        self.grant_all("User:ANONYMOUS")
        self.grant_all(f"User:{STRANGER}")

    def secure_settings(self):
        return {
            "listener.security.protocol.map": PLAIN_PROTOCOLS,
            "sasl.enabled.mechanisms": SCRAM,
            "sasl.mechanism.inter.broker.protocol": SCRAM,
            JAAS: jaas(BROKER, password_of(BROKER), SCRAM),
            "ssl.keystore.type": "PEM",
            "ssl.truststore.type": "PEM",
            "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
            "super.users": f"User:{BROKER};User:{ADMIN}",
            "password.encoder.secret": "marked-encoder-secret",
            f"listener.name.brokers.{SCRAM.lower()}.connections.max.reauth.ms": str(SESSION_MS),
            "zookeeper.set.acl": "true",
            "flakelog.ids.zookeeper.credentials.file": str(self._credentials()),
        }

    # --- certificates and passwords ------------------------------------------------------------------------------

    def _certificate(self, number):
        return self.files.directory / f"broker-{number}.pem"

    def _trusted(self, number):
        return self.files.directory / f"trusted-{number}.pem"

    def _credentials(self):
        """Return the file of the brokers' credentials for ZooKeeper."""
        file = self._passwords / "zookeeper"
        file.write_text("flakelog:marked-secret-of-zookeeper")
        return file

    def _added(self, user):
        file = self._passwords / user
        file.write_text(password_of(user))
        return f"{SCRAM}=[name={user},password-file={file}]"

    def renew_certificate(self, number):
        """Give a broker another certificate of the same name, as an operator does: the file is replaced whole."""
        new = self.files.directory / f"new-{number}.pem"
        new.unlink(missing_ok=True)
        self.files.authority.issue(f"broker-{number}").write_pem(new)
        new.rename(self._certificate(number))

    def trust(self, number, authority):
        """Let a broker trust another authority, as an operator does: the file is replaced whole."""
        authority.write_pem(self.files.directory / "new.pem").rename(self._trusted(number))

    def change_password(self, password):
        """Change the password with which brokers log in to each other, first the user's and then each broker's."""
        self._set_password(BROKER, password)
        for number in NUMBERS:
            self.alter(number, JAAS, jaas(BROKER, password, SCRAM))

    def restore_password(self):
        """Let the brokers log in with the password of their files again, instead of one that was set at run time."""
        self._set_password(BROKER, password_of(BROKER))
        for number in NUMBERS:
            self._alter(number, JAAS, None, AlterConfigOpType.DELETE)

    def _set_password(self, user, password):
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        upsertion = UserScramCredentialUpsertion(user, info, password.encode())
        self._administer_as_admin(lambda admin: admin.alter_user_scram_credentials([upsertion]))

    def alter(self, number, name, value):
        """Alter a setting of one broker at run time."""
        self._alter(number, name, value, AlterConfigOpType.SET)

    def _alter(self, number, name, value, operation):
        entry = ConfigEntry(name, value, incremental_operation=operation)
        resource = ConfigResource(ConfigResource.Type.BROKER, str(number), incremental_configs=[entry])
        self._administer_as_admin(lambda admin: admin.incremental_alter_configs([resource]))

    # --- clients at the listener of brokers ----------------------------------------------------------------------

    def login(self, user):
        """Return the settings of a stock client that logs in at the listener of brokers."""
        addresses = [server.addresses["broker.BROKERS"] for server in self.servers.values() if server.running]
        return {
            "bootstrap.servers": ",".join(addresses),
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.files.ca),
            "sasl.mechanism": SCRAM,
            "sasl.username": user,
            "sasl.password": password_of(user),
        } | QUIET

    def security_of(self, user):
        """Return the security of one of Flakelog's clients that logs in at the listener of brokers."""
        return {
            "security.protocol": "SASL_SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.files.ca),
            "sasl.mechanism": SCRAM,
            "sasl.jaas.config": jaas(user, password_of(user), SCRAM),
        }

    def _administer_as_admin(self, begin):
        """Let `begin(admin)` begin acts of the administrator, and wait for their ends.

        Each time it is a new client, because librdkafka does not look for a new controller.
        """
        admin = AdminClient(self.login(ADMIN))  # its futures fail if it is collected
        for done in begin(admin).values():
            done.result(SECONDS)

    def grant_all(self, principal):
        """Give a principal all rights on topics, groups and transactions."""
        kinds = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
        rest = principal, "*", AclOperation.ALL, AclPermissionType.ALLOW
        rules = [AclBinding(kind, "*", ResourcePatternType.LITERAL, *rest) for kind in kinds]
        self._administer_as_admin(lambda admin: admin.create_acls(rules))
