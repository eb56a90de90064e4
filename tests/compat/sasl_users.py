"""Users of a server that asks who its clients are, and the settings of its listeners."""

from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from tests.patience import SECONDS

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
USER, PASSWORD = "ada", 'ada "marked" secret=,'
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


def jaas(user=USER, password=PASSWORD, mechanism="PLAIN"):
    """Return the JAAS text of a client."""
    module = PLAIN_MODULE if mechanism == "PLAIN" else SCRAM_MODULE
    return f'{module} required username="{user}" password="{_escaped(password)}";'


def listener_jaas(users=((USER, PASSWORD),)):
    """Return the JAAS text of a listener that takes PLAIN."""
    options = " ".join(f'user_{user}="{_escaped(password)}"' for user, password in users)
    return f"{PLAIN_MODULE} required {options};"


def _escaped(password):
    return password.replace("\\", "\\\\").replace('"', '\\"')


def settings(files, **more):
    """Return the settings of a server with a plain listener for administrators, and both kinds that ask."""
    return {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": files.broker,
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": listener_jaas(),
        "listener.name.sasl_ssl.plain.sasl.jaas.config": listener_jaas(),
        "group.initial.rebalance.delay.ms": 0,
    } | {name.replace("_", "."): value for name, value in more.items()}


def set_password(address, user=USER, password=PASSWORD, iterations=4096):
    """Give a user a password for SCRAM, at a listener that asks nothing."""
    admin = AdminClient({"bootstrap.servers": address})
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        info = ScramCredentialInfo(mechanism, iterations)
        upsertion = UserScramCredentialUpsertion(user, info, password.encode())
        (done,) = admin.alter_user_scram_credentials([upsertion]).values()
        done.result(SECONDS)
