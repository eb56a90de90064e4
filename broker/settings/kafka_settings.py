"""Every setting of Kafka's broker and topics (4.3, and those that 4.0 removed), and its treatment here.

    HONOURED  a settings dataclass of Flakelog has it, or takes it as another name of one (`SYNONYMS`)
    IGNORED   leaving it out changes nothing a client could count on; the reason says why
    REFUSED   leaving it out would change what the operator meant; the reason says that, and what to do instead

Some values of a refused setting ask for nothing (`remote.log.storage.system.enable=false`): these are ignored. Names,
types and defaults are those of Kafka's ConfigDef. The module is data. It is imported only when needed: when settings
are checked, altered or listed, or a name is unknown to every dataclass.
"""

import re
from collections.abc import Callable
from difflib import get_close_matches
from itertools import permutations
from typing import NamedTuple

HONOURED, IGNORED, REFUSED = "honoured", "ignored", "refused"

_SERVED = ("file", "dir", "env")  # broker.security.references has these providers
_PROVIDERS = tuple(",".join(names) for count in (1, 2, 3) for names in permutations(_SERVED, count))
_PROVIDER_CLASSES = tuple(
    f"org.apache.kafka.common.config.provider.{name}configprovider" for name in ("file", "directory", "envvar")
)


class KafkaSetting(NamedTuple):
    """A setting of Kafka.

    `default` is as Kafka writes it, None if there is no default. `harmless` has the values of a refused setting that
    ask for nothing. `is_shown` is True if DescribeConfigs shows the setting even when it is not set; it is False for
    settings that are internal to Kafka or removed from it.
    """

    name: str
    type: str
    default: str | None
    standing: str
    reason: str
    harmless: tuple[str, ...] = ()
    is_shown: bool = True

    def refusal(self, value: str) -> str | None:
        """Return why this value cannot be accepted, or None."""
        given = value.strip()
        if self.standing == REFUSED and given.lower() not in self.harmless:
            return self.reason
        return self.flaw(given)

    def flaw(self, value: str) -> str | None:
        """Return why Kafka does not allow this value, or None."""
        given = value.strip()
        if not given:
            return "must have a value" if self.type in _NEVER_EMPTY else None
        return _TYPES[self.type](given) or _VALUES.get(self.name, _anything)(given)

    def standing_of(self, value: str) -> str:
        """Return the standing for this value: a refused setting is REFUSED only for the values it refuses."""
        return IGNORED if self.standing == REFUSED and self.refusal(value) is None else self.standing


def broker_setting(name: str) -> KafkaSetting | None:
    """Return Kafka's broker setting of this name, or None.

    A name for one listener (`listener.name.x.ssl.protocol`), or with a free end (`config.providers.x.class`), gets the
    row of the setting it belongs to.
    """
    setting = _BROKER.get(name)
    if setting is not None:
        return setting
    if name.startswith("listener.name."):
        own = name.split(".", 3)[3:]
        mechanism = own[0].split(".", 1)[1:] if own else []
        return next((_BROKER[candidate] for candidate in own + mechanism if candidate in _BROKER), None)
    return next((row for start, row in _PREFIXES if name.startswith(start)), None)


def is_alterable(name: str) -> bool:
    """Return True if Kafka can alter this broker setting at run time, and it has no effect here."""
    return name in _ALTERABLE or name in _ALTERABLE_OF_A_NODE or name.startswith(_OF_A_LISTENER)


READ_ONCE = "it is read once, at the start: set it in the broker's own file, and restart the broker"


def why_not_alterable(name: str, all_brokers: bool) -> str | None:
    """Return Kafka's reason why a setting without effect here cannot be altered at run time, or None if it can be.

    `all_brokers` is True if it is altered for all of them. `name` may begin with the name of a listener.
    """
    row = broker_setting(name)
    of_a_listener = row is not None and name != row.name
    if row is None or not is_alterable(row.name):
        unused = row is not None and row.standing != HONOURED
        reason = f"it has no effect here: {row.reason}" if unused and row else READ_ONCE
        return f"Cannot update these configs dynamically: [{name}]; {reason}"
    if all_brokers and (of_a_listener or row.name in _ALTERABLE_OF_A_NODE):
        return f"Cannot update these configs at default cluster level, broker id must be specified: [{name}]"
    if row.name.startswith(_OF_A_LISTENER) and not of_a_listener:
        refusal = "These security configs can be dynamically updated only per-listener using the listener prefix"
        return f"{refusal}: [{name}]"
    return None


def topic_setting(name: str) -> KafkaSetting | None:
    """Return Kafka's topic setting of this name, or None."""
    return _TOPIC.get(name)


def broker_settings() -> list[KafkaSetting]:
    """Return all settings of the broker, by name."""
    return [_BROKER[name] for name in sorted(_BROKER)]


def topic_settings() -> list[KafkaSetting]:
    """Return all settings of a topic, by name."""
    return [_TOPIC[name] for name in sorted(_TOPIC)]


def nearest(name: str, others: list[str]) -> str | None:
    """Return the name most like this one, among Kafka's broker settings and `others`, or None if none is close."""
    return next(iter(get_close_matches(name, {*others, *_BROKER}, 1, 0.7)), None)


def _number(value: str) -> str | None:
    try:
        float(value)
    except ValueError:
        return "must be a number"
    return None


def _whole(bits: int) -> Callable[[str], str | None]:
    def check(value: str) -> str | None:
        if not re.fullmatch(r"[+-]?\d+", value):
            return "must be a whole number"
        return None if -(1 << bits - 1) <= int(value) < 1 << bits - 1 else f"must be a number of {bits} bits"

    return check


def _replicas(value: str) -> str | None:
    named = value == "*" or all(re.fullmatch("([0-9]+:[0-9]+)?", replica.strip()) for replica in value.split(","))
    return None if named else "must be partition:broker,... or *"


def _at_least(least: int) -> Callable[[str], str | None]:
    return lambda value: None if int(value) >= least else f"must be at least {least}"


def _boolean(value: str) -> str | None:
    return None if value.lower() in ("true", "false") else "must be true or false"


def _anything(value: str) -> None:
    return None


_TYPES = {
    "int": _whole(32),
    "long": _whole(64),
    "short": _whole(16),
    "double": _number,
    "boolean": _boolean,
    "string": _anything,
    "list": _anything,
    "class": _anything,
    "password": _anything,
}
_NEVER_EMPTY = ("int", "long", "short", "double", "boolean")
_VALUES = {  # further checks of settings that are stored but have no effect
    "background.threads": _at_least(1),
    "follower.replication.throttled.rate": _at_least(0),
    "leader.replication.throttled.rate": _at_least(0),
    "log.cleaner.threads": _at_least(0),
    "log.index.size.max.bytes": _at_least(4),
    "log.local.retention.bytes": _at_least(-2),
    "log.local.retention.ms": _at_least(-2),
    "log.roll.jitter.ms": _at_least(0),
    "num.io.threads": _at_least(1),
    "num.network.threads": _at_least(1),
    "num.recovery.threads.per.data.dir": _at_least(1),
    "num.replica.fetchers": _at_least(1),
    "replica.alter.log.dirs.io.max.bytes.per.second": _at_least(0),
    "follower.replication.throttled.replicas": _replicas,
    "leader.replication.throttled.replicas": _replicas,
    "local.retention.bytes": _at_least(-2),
    "local.retention.ms": _at_least(-2),
    "segment.index.bytes": _at_least(4),
    "segment.jitter.ms": _at_least(0),
}

# Kafka's dynamic settings of brokers (KIP-226) that have no effect here, as DescribeConfigs of Kafka 4.3 lists them.
# They can be altered as in Kafka, because tools and scripts do that. They are kept, and shown with the reason.
_ALTERABLE = frozenset(
    """
    background.threads follower.fetch.last.tiered.offset.enable follower.replication.throttled.rate
    group.consumer.assignment.interval.ms group.coordinator.cached.buffer.max.bytes group.share.assignment.interval.ms
    group.streams.assignment.interval.ms leader.replication.throttled.rate log.cleaner.io.buffer.load.factor
    log.cleaner.io.buffer.size log.cleaner.threads log.index.size.max.bytes log.local.retention.bytes
    log.local.retention.ms log.preallocate log.roll.jitter.ms metric.reporters num.io.threads num.network.threads
    num.recovery.threads.per.data.dir num.replica.fetchers remote.fetch.max.wait.ms
    remote.list.offsets.request.timeout.ms remote.log.index.file.cache.total.size.bytes
    remote.log.manager.copier.thread.pool.size remote.log.manager.copy.max.bytes.per.second
    remote.log.manager.expiration.thread.pool.size remote.log.manager.fetch.max.bytes.per.second
    remote.log.manager.follower.thread.pool.size remote.log.reader.threads
    replica.alter.log.dirs.io.max.bytes.per.second share.coordinator.cached.buffer.max.bytes
    """.split()
)
_ALTERABLE_OF_A_NODE = frozenset(
    """
    principal.builder.class sasl.enabled.mechanisms sasl.jaas.config sasl.kerberos.kinit.cmd
    sasl.kerberos.min.time.before.relogin sasl.kerberos.principal.to.local.rules sasl.kerberos.service.name
    sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor sasl.login.refresh.buffer.seconds
    sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor sasl.login.refresh.window.jitter
    sasl.mechanism.inter.broker.protocol ssl.cipher.suites ssl.client.auth ssl.enabled.protocols
    ssl.endpoint.identification.algorithm ssl.engine.factory.class ssl.keymanager.algorithm ssl.protocol ssl.provider
    ssl.secure.random.implementation ssl.trustmanager.algorithm
    """.split()
)
_OF_A_LISTENER = ("ssl.key.password", "ssl.keystore.", "ssl.truststore.")

# Kafka's other names of a setting; the first one given counts. A number is multiplied by the factor, to be in the
# setting's unit.
SYNONYMS: dict[str, tuple[tuple[str, int], ...]] = {
    "node.id": (("broker.id", 1),),
    "log.retention.ms": (("log.retention.minutes", 60_000), ("log.retention.hours", 3_600_000)),
    "log.roll.ms": (("log.roll.hours", 3_600_000),),
    "log.flush.interval.ms": (("log.flush.scheduler.interval.ms", 1),),
    "log.dirs": (("log.dir", 1),),
}
# Settings of which Kafka reports each name separately; the default is that of the last name.
TOLD_APART = ("log.retention.ms", "log.roll.ms", "log.flush.interval.ms")
# The broker's names for the defaults of topic settings that have no effect here. Kafka reports none for the others.
SERVER_NAMES = {
    "local.retention.bytes": "log.local.retention.bytes",
    "local.retention.ms": "log.local.retention.ms",
    "preallocate": "log.preallocate",
    "segment.index.bytes": "log.index.size.max.bytes",
}


def _rows(text: str, standing: str, reason: str, harmless: tuple[str, ...] = ()) -> list[KafkaSetting]:
    """Parse rows of "name type default".

    The default "-" is None, and a missing one is empty. A long default continues on the next line after a backslash.
    "~" before the name marks a setting that is not `is_shown`.
    """
    rows = []
    for line in text.strip().splitlines():
        name, type, *default = line.split(None, 2)
        value = default[0].replace(" ", "") if default else ""
        default_or_none, is_shown = None if value == "-" else value, not name.startswith("~")
        rows.append(KafkaSetting(name.lstrip("~"), type, default_or_none, standing, reason, harmless, is_shown))
    return rows


_BROKER_ROWS = [
    *_rows(
        """
        advertised.listeners list -
        auto.create.topics.enable boolean true
        auto.leader.rebalance.enable boolean true
        broker.id int -1
        broker.rack string -
        compression.gzip.level int -1
        compression.lz4.level int 9
        compression.type string producer
        compression.zstd.level int 3
        connections.max.idle.ms long 600000
        controlled.shutdown.enable boolean true
        ~controlled.shutdown.max.retries int 3
        ~controlled.shutdown.retry.backoff.ms long 5000
        controller.listener.names list -
        controller.quota.window.num int 11
        controller.quota.window.size.seconds int 1
        delete.topic.enable boolean true
        default.replication.factor int 1
        fetch.max.bytes int 57671680
        group.initial.rebalance.delay.ms int 3000
        group.max.session.timeout.ms int 1800000
        group.max.size int 2147483647
        group.min.session.timeout.ms int 6000
        inter.broker.listener.name string -
        leader.imbalance.check.interval.seconds long 300
        ~leader.imbalance.per.broker.percentage int 10
        listener.security.protocol.map string \
            SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT
        listeners list PLAINTEXT://:9092
        log.cleaner.backoff.ms long 15000
        log.cleaner.dedupe.buffer.size long 134217728
        log.cleaner.delete.retention.ms long 86400000
        log.cleaner.enable boolean true
        log.cleaner.io.max.bytes.per.second double 1.7976931348623157E308
        log.cleaner.max.compaction.lag.ms long 9223372036854775807
        log.cleaner.min.cleanable.ratio double 0.5
        log.cleaner.min.compaction.lag.ms long 0
        log.cleanup.policy list delete
        log.dir list /tmp/kafka-logs
        log.dirs list -
        log.flush.interval.messages long 9223372036854775807
        log.flush.interval.ms long -
        log.flush.offset.checkpoint.interval.ms int 60000
        log.flush.scheduler.interval.ms long 9223372036854775807
        log.index.interval.bytes int 4096
        log.message.timestamp.after.max.ms long 3600000
        log.message.timestamp.before.max.ms long 9223372036854775807
        log.message.timestamp.type string CreateTime
        log.retention.bytes long -1
        log.retention.check.interval.ms long 300000
        log.retention.hours int 168
        log.retention.minutes int -
        log.retention.ms long -
        log.roll.hours int 168
        log.roll.ms long -
        log.segment.bytes int 1073741824
        log.segment.delete.delay.ms long 60000
        max.connection.creation.rate int 2147483647
        max.connections int 2147483647
        max.connections.per.ip int 2147483647
        max.connections.per.ip.overrides string
        max.incremental.fetch.session.cache.slots int 1000
        max.request.partition.size.limit int 2000
        message.max.bytes int 1048588
        min.insync.replicas int 1
        node.id int -
        num.partitions int 1
        offset.metadata.max.bytes int 4096
        offsets.commit.timeout.ms int 5000
        offsets.retention.check.interval.ms long 600000
        offsets.retention.minutes int 10080
        offsets.topic.num.partitions int 50
        offsets.topic.replication.factor short 3
        offsets.topic.segment.bytes int 104857600
        producer.id.expiration.ms int 86400000
        queued.max.request.bytes long -1
        quota.window.num int 11
        quota.window.size.seconds int 1
        replica.fetch.backoff.ms int 1000
        replica.fetch.max.bytes int 1048576
        replica.fetch.min.bytes int 1
        replica.fetch.response.max.bytes int 10485760
        replica.fetch.wait.max.ms int 500
        replica.high.watermark.checkpoint.interval.ms long 5000
        replica.lag.time.max.ms long 30000
        socket.listen.backlog.size int 50
        socket.receive.buffer.bytes int 102400
        socket.request.max.bytes int 104857600
        socket.send.buffer.bytes int 102400
        transaction.abort.timed.out.transaction.cleanup.interval.ms int 10000
        transaction.max.timeout.ms int 900000
        transaction.partition.verification.enable boolean true
        transaction.remove.expired.transaction.cleanup.interval.ms int 3600000
        transaction.state.log.min.isr int 2
        transaction.state.log.num.partitions int 50
        transaction.state.log.replication.factor short 3
        transaction.state.log.segment.bytes int 104857600
        transactional.id.expiration.ms int 604800000
        unclean.leader.election.enable boolean false
        ~password.encoder.old.secret password -
        ~password.encoder.secret password -
        ~zookeeper.connect string -
        ~zookeeper.session.timeout.ms int 18000
        ~zookeeper.set.acl boolean false
        """,
        HONOURED,
        "",
    ),
    *_rows(
        """
        authorizer.class.name string
        """,
        HONOURED,
        "",
    ),
    *_rows(  # the settings of Kafka's StandardAuthorizer, which are in no ConfigDef
        """
        ~super.users string -
        ~allow.everyone.if.no.acl.found boolean -
        """,
        HONOURED,
        "",
    ),
    *_rows(
        """
        alter.config.policy.class.name class -
        create.topic.policy.class.name class -
        """,
        REFUSED,
        "a policy in Java cannot be asked, so what it forbids would be done; leave it out",
        ("",),
    ),
    *_rows(
        """
        config.providers list
        """,
        REFUSED,
        "the providers file, dir and env are always there, by these names, and there are no others; name these only",
        ("", *_PROVIDERS),
    ),
    *_rows(
        """
        process.roles list -
        """,
        REFUSED,
        "one process is broker and controller; process.roles=broker,controller is that",
        ("", "broker", "broker,controller", "controller,broker"),
    ),
    *_rows(
        """
        remote.log.storage.system.enable boolean false
        """,
        REFUSED,
        "there is no tiered storage; set it to false and size log.retention.bytes for the disk",
        ("", "false"),
    ),
    *_rows(
        """
        transaction.two.phase.commit.enable boolean false
        """,
        REFUSED,
        "transactions always time out; set it to false",
        ("", "false"),
    ),
    *_rows(
        """
        cordoned.log.dirs list
        """,
        REFUSED,
        "there is one directory, and new partitions must go somewhere; leave it out",
        ("",),
    ),
    *_rows(
        """
        group.coordinator.rebalance.protocols list classic,consumer,streams
        """,
        REFUSED,
        "groups of the classic protocol are served; classic must be among them",
        ("", "classic", "classic,consumer", "classic,consumer,streams"),
    ),
    *_rows(
        """
        ssl.allow.dn.changes boolean false
        ssl.allow.san.changes boolean false
        ssl.cipher.suites list
        ssl.client.auth string none
        ssl.enabled.protocols list TLSv1.2,TLSv1.3
        ssl.endpoint.identification.algorithm string https
        ssl.key.password password -
        ssl.keystore.certificate.chain password -
        ssl.keystore.key password -
        ssl.keystore.location string -
        ssl.keystore.password password -
        ssl.keystore.type string JKS
        ssl.principal.mapping.rules string DEFAULT
        ssl.truststore.certificates password -
        ssl.truststore.location string -
        ssl.truststore.password password -
        ssl.truststore.type string JKS
        """,
        HONOURED,
        "",
    ),
    *_rows(
        """
        security.providers string -
        ssl.keymanager.algorithm string SunX509
        ssl.protocol string TLSv1.3
        ssl.provider string -
        ssl.secure.random.implementation string -
        ssl.trustmanager.algorithm string PKIX
        """,
        IGNORED,
        "Java's TLS is chosen by it; here OpenSSL's is the only one",
    ),
    *_rows(
        """
        ssl.engine.factory.class class -
        """,
        REFUSED,
        "TLS is OpenSSL's, and no class of Java makes it; leave it out",
        ("", "org.apache.kafka.common.security.ssl.defaultsslenginefactory"),
    ),
    *_rows(
        """
        connection.failed.authentication.delay.ms int 100
        connections.max.reauth.ms long 0
        sasl.enabled.mechanisms list GSSAPI
        sasl.jaas.config password -
        sasl.login.callback.handler.class class -
        sasl.mechanism.inter.broker.protocol string GSSAPI
        sasl.oauthbearer.assertion.algorithm string RS256
        sasl.oauthbearer.assertion.claim.aud string -
        sasl.oauthbearer.assertion.claim.exp.seconds int 300
        sasl.oauthbearer.assertion.claim.iss string -
        sasl.oauthbearer.assertion.claim.jti.include boolean false
        sasl.oauthbearer.assertion.claim.nbf.seconds int 60
        sasl.oauthbearer.assertion.claim.sub string -
        sasl.oauthbearer.assertion.file string -
        sasl.oauthbearer.assertion.private.key.file string -
        sasl.oauthbearer.assertion.private.key.passphrase password -
        sasl.oauthbearer.assertion.template.file string -
        sasl.oauthbearer.client.credentials.client.id string -
        sasl.oauthbearer.client.credentials.client.secret password -
        sasl.oauthbearer.clock.skew.seconds int 30
        sasl.oauthbearer.expected.audience list
        sasl.oauthbearer.expected.issuer string -
        sasl.oauthbearer.jwks.endpoint.refresh.ms long 3600000
        sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms long 10000
        sasl.oauthbearer.jwks.endpoint.retry.backoff.ms long 100
        sasl.oauthbearer.jwks.endpoint.url string -
        sasl.oauthbearer.jwt.retriever.class class org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever
        sasl.oauthbearer.scope string -
        sasl.oauthbearer.scope.claim.name string scope
        sasl.oauthbearer.sub.claim.name string sub
        sasl.oauthbearer.token.endpoint.url string -
        sasl.server.callback.handler.class class -
        sasl.server.max.receive.size int 524288
        security.inter.broker.protocol string PLAINTEXT
        """,
        HONOURED,
        "",
    ),
    *_rows(
        """
        delegation.token.secret.key password -
        """,
        REFUSED,
        "delegation tokens are not served; leave it out, and give programs users of their own",
        ("",),
    ),
    *_rows(
        """
        delegation.token.expiry.check.interval.ms long 3600000
        delegation.token.expiry.time.ms long 86400000
        delegation.token.max.lifetime.ms long 604800000
        """,
        IGNORED,
        "there are no delegation tokens",
    ),
    *_rows(
        """
        principal.builder.class class org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder
        """,
        REFUSED,
        "a class in Java cannot be asked, so that users would have other names; leave it out",
        ("", "org.apache.kafka.common.security.authenticator.defaultkafkaprincipalbuilder"),
    ),
    *_rows(
        """
        sasl.oauthbearer.jwt.validator.class class org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator
        """,
        REFUSED,
        "a class in Java cannot be asked, so that tokens would be checked in another way; leave it out",
        (
            "",
            "org.apache.kafka.common.security.oauthbearer.defaultjwtvalidator",
            "org.apache.kafka.common.security.oauthbearer.brokerjwtvalidator",
        ),
    ),
    *_rows(
        """
        sasl.kerberos.kinit.cmd string /usr/bin/kinit
        sasl.kerberos.min.time.before.relogin long 60000
        sasl.kerberos.principal.to.local.rules list DEFAULT
        sasl.kerberos.service.name string -
        sasl.kerberos.ticket.renew.jitter double 0.05
        sasl.kerberos.ticket.renew.window.factor double 0.8
        """,
        IGNORED,
        "GSSAPI (Kerberos) is not served, and refused as a mechanism",
    ),
    *_rows(
        """
        sasl.client.callback.handler.class class -
        sasl.login.class class -
        sasl.login.connect.timeout.ms int -
        sasl.login.read.timeout.ms int -
        sasl.login.refresh.buffer.seconds short 300
        sasl.login.refresh.min.period.seconds short 60
        sasl.login.refresh.window.factor double 0.8
        sasl.login.refresh.window.jitter double 0.05
        sasl.login.retry.backoff.max.ms long 10000
        sasl.login.retry.backoff.ms long 100
        sasl.mechanism.controller.protocol string GSSAPI
        """,
        IGNORED,
        "a broker logs in to other brokers with `sasl.mechanism.inter.broker.protocol` alone",
    ),
    *_rows(
        """
        group.consumer.assignment.interval.ms int 1000
        group.consumer.assignors list uniform,range
        group.consumer.heartbeat.interval.ms int 5000
        group.consumer.max.assignment.interval.ms int 15000
        group.consumer.max.heartbeat.interval.ms int 15000
        group.consumer.max.session.timeout.ms int 60000
        group.consumer.max.size int 2147483647
        group.consumer.migration.policy string bidirectional
        group.consumer.min.assignment.interval.ms int 0
        group.consumer.min.heartbeat.interval.ms int 5000
        group.consumer.min.session.timeout.ms int 45000
        ~group.consumer.regex.refresh.interval.ms int 600000
        group.consumer.session.timeout.ms int 45000
        """,
        IGNORED,
        "groups of KIP-848 are not served; their clients use the classic protocol, with group.*.session.timeout.ms",
    ),
    *_rows(
        """
        group.share.assignment.interval.ms int 1000
        group.share.assignors list simple
        group.share.delivery.count.limit int 5
        group.share.heartbeat.interval.ms int 5000
        ~group.share.initialize.retry.interval.ms int 30000
        group.share.max.assignment.interval.ms int 15000
        group.share.max.delivery.count.limit int 10
        group.share.max.heartbeat.interval.ms int 15000
        group.share.max.partition.max.record.locks int 4000
        group.share.max.record.lock.duration.ms int 60000
        group.share.max.session.timeout.ms int 60000
        group.share.max.share.sessions int 2000
        group.share.max.size int 200
        group.share.min.assignment.interval.ms int 0
        group.share.min.delivery.count.limit int 2
        group.share.min.heartbeat.interval.ms int 5000
        group.share.min.partition.max.record.locks int 100
        group.share.min.record.lock.duration.ms int 15000
        group.share.min.session.timeout.ms int 45000
        group.share.partition.max.record.locks int 2000
        ~group.share.persister.class.name string org.apache.kafka.server.share.persister.DefaultStatePersister
        group.share.record.lock.duration.ms int 30000
        group.share.session.timeout.ms int 45000
        share.coordinator.append.linger.ms int -1
        share.coordinator.cached.buffer.max.bytes int 1048588
        ~share.coordinator.cold.partition.snapshot.interval.ms int 300000
        share.coordinator.load.buffer.size int 5242880
        share.coordinator.snapshot.update.records.per.snapshot int 500
        share.coordinator.state.topic.compression.codec int 0
        share.coordinator.state.topic.min.isr short 2
        share.coordinator.state.topic.num.partitions int 50
        ~share.coordinator.state.topic.prune.interval.ms int 300000
        share.coordinator.state.topic.replication.factor short 3
        share.coordinator.state.topic.segment.bytes int 104857600
        share.coordinator.threads int 1
        share.coordinator.write.timeout.ms int 5000
        share.fetch.purgatory.purge.interval.requests int 1000
        """,
        IGNORED,
        "share groups (KIP-932) are not served",
    ),
    *_rows(
        """
        group.streams.assignment.interval.ms int 1000
        group.streams.heartbeat.interval.ms int 5000
        group.streams.initial.rebalance.delay.ms int 3000
        group.streams.max.assignment.interval.ms int 15000
        group.streams.max.heartbeat.interval.ms int 15000
        group.streams.max.session.timeout.ms int 60000
        group.streams.max.size int 2147483647
        group.streams.max.standby.replicas int 2
        group.streams.min.assignment.interval.ms int 0
        group.streams.min.heartbeat.interval.ms int 5000
        group.streams.min.session.timeout.ms int 45000
        group.streams.num.standby.replicas int 0
        group.streams.session.timeout.ms int 45000
        """,
        IGNORED,
        "streams groups (KIP-1071) are not served; Kafka Streams uses the classic protocol",
    ),
    *_rows(
        """
        follower.fetch.last.tiered.offset.enable boolean false
        log.local.retention.bytes long -2
        log.local.retention.ms long -2
        remote.fetch.max.wait.ms int 500
        remote.list.offsets.request.timeout.ms long 30000
        remote.log.index.file.cache.total.size.bytes long 1073741824
        ~remote.log.index.file.cache.ttl.ms long 900000
        remote.log.manager.copier.thread.pool.size int 10
        remote.log.manager.copy.max.bytes.per.second long 9223372036854775807
        remote.log.manager.copy.quota.window.num int 11
        remote.log.manager.copy.quota.window.size.seconds int 1
        remote.log.manager.expiration.thread.pool.size int 10
        remote.log.manager.fetch.max.bytes.per.second long 9223372036854775807
        remote.log.manager.fetch.quota.window.num int 11
        remote.log.manager.fetch.quota.window.size.seconds int 1
        remote.log.manager.follower.thread.pool.size int 2
        remote.log.manager.task.interval.ms long 30000
        ~remote.log.manager.task.retry.backoff.max.ms long 30000
        ~remote.log.manager.task.retry.backoff.ms long 500
        ~remote.log.manager.task.retry.jitter double 0.2
        remote.log.manager.thread.pool.size int 2
        remote.log.metadata.custom.metadata.max.bytes int 128
        remote.log.metadata.manager.class.name string \
            org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager
        remote.log.metadata.manager.class.path string -
        remote.log.metadata.manager.impl.prefix string rlmm.config.
        remote.log.metadata.manager.listener.name string -
        remote.log.reader.max.pending.tasks int 100
        remote.log.reader.threads int 10
        remote.log.storage.manager.class.name string -
        remote.log.storage.manager.class.path string -
        remote.log.storage.manager.impl.prefix string rsm.config.
        """,
        IGNORED,
        "there is no tiered storage",
    ),
    *_rows(
        """
        client.quota.callback.class class -
        """,
        REFUSED,
        "quotas are those that clients are given by AlterClientQuotas, a class in Java cannot be asked; leave it out",
        ("",),
    ),
    *_rows(
        """
        delete.records.purgatory.purge.interval.requests int 1
        fetch.purgatory.purge.interval.requests int 1000
        producer.purgatory.purge.interval.requests int 1000
        """,
        IGNORED,
        "what is done leaves the purgatory at once",
    ),
    *_rows(
        """
        kafka.metrics.polling.interval.secs int 10
        kafka.metrics.reporters list
        metric.reporters list org.apache.kafka.common.metrics.JmxReporter
        metrics.num.samples int 2
        metrics.recording.level string INFO
        metrics.sample.window.ms long 30000
        telemetry.max.bytes int 1048576
        """,
        IGNORED,
        "figures are Prometheus text at /metrics of flakelog.http.listener",
    ),
    *_rows(
        """
        broker.heartbeat.interval.ms int 2000
        broker.session.timeout.ms int 9000
        ~controller.performance.always.log.threshold.ms long 2000
        ~controller.performance.sample.period.ms long 60000
        controller.quorum.append.linger.ms int 25
        controller.quorum.auto.join.enable boolean false
        controller.quorum.bootstrap.servers list
        controller.quorum.election.backoff.max.ms int 1000
        controller.quorum.election.timeout.ms int 1000
        controller.quorum.fetch.max.bytes int 1048576
        controller.quorum.fetch.snapshot.max.bytes int 1048576
        controller.quorum.fetch.timeout.ms int 2000
        controller.quorum.request.timeout.ms int 2000
        controller.quorum.retry.backoff.ms int 20
        controller.quorum.voters list
        controller.socket.timeout.ms int 30000
        early.start.listeners list -
        initial.broker.registration.timeout.ms int 60000
        ~internal.metadata.delete.delay.millis long 60000
        ~internal.metadata.log.segment.bytes int -
        ~internal.metadata.max.batch.size.in.bytes int 8388608
        metadata.log.dir string -
        metadata.log.max.record.bytes.between.snapshots long 20971520
        metadata.log.max.snapshot.interval.ms long 3600000
        metadata.log.segment.bytes int 1073741824
        metadata.log.segment.ms long 604800000
        metadata.max.idle.interval.ms int 500
        metadata.max.retention.bytes long 104857600
        metadata.max.retention.ms long 604800000
        ~server.max.startup.time.ms long 9223372036854775807
        """,
        IGNORED,
        "this node is the quorum of controllers by itself: metadata is one file of the data directory",
    ),
    *_rows(
        """
        background.threads int 10
        group.coordinator.append.linger.ms int -1
        group.coordinator.background.threads int 2
        group.coordinator.cached.buffer.max.bytes int 1048588
        group.coordinator.threads int 4
        num.io.threads int 8
        num.network.threads int 3
        num.recovery.threads.per.data.dir int 2
        num.replica.alter.log.dirs.threads int -
        queued.max.requests int 500
        """,
        IGNORED,
        "one thread serves all connections, and its queues have limits of their own",
    ),
    *_rows(
        """
        num.replica.fetchers int 1
        ~unclean.leader.election.interval.ms long 300000
        """,
        IGNORED,
        "one connection to each leader copies all its partitions, and the controller elects as soon as it can",
    ),
    *_rows(
        """
        alter.log.dirs.replication.quota.window.num int 11
        alter.log.dirs.replication.quota.window.size.seconds int 1
        replication.quota.window.num int 11
        replication.quota.window.size.seconds int 1
        """,
        IGNORED,
        "copies between brokers or disks are not throttled",
    ),
    *_rows(
        """
        log.dir.failure.timeout.ms long 30000
        """,
        IGNORED,
        "a broker has one data directory; logs that its disk fails go offline at once",
    ),
    *_rows(
        """
        replica.selector.class string -
        """,
        IGNORED,
        "consumers read from the leader of a partition",
    ),
    *_rows(
        """
        add.partitions.to.txn.retry.backoff.max.ms int 100
        add.partitions.to.txn.retry.backoff.ms int 20
        replica.socket.receive.buffer.bytes int 65536
        replica.socket.timeout.ms int 30000
        request.timeout.ms int 30000
        socket.connection.setup.timeout.max.ms long 30000
        socket.connection.setup.timeout.ms long 10000
        """,
        IGNORED,
        "requests between brokers have fixed times",
    ),
    *_rows(
        """
        log.cleaner.io.buffer.load.factor double 0.9
        log.cleaner.io.buffer.size int 524288
        log.flush.start.offset.checkpoint.interval.ms int 60000
        log.index.size.max.bytes int 10485760
        ~log.initial.task.delay.ms long 30000
        log.preallocate boolean false
        log.roll.jitter.hours int 0
        log.roll.jitter.ms long -
        offsets.load.buffer.size int 5242880
        ~producer.id.expiration.check.interval.ms int 600000
        transaction.state.log.load.buffer.size int 5242880
        """,
        IGNORED,
        "it changes speed, never what a client sees; the cleaner and the indexes size themselves",
    ),
    *_rows(
        """
        log.cleaner.threads int 1
        """,
        IGNORED,
        "one thread cleans, one log at a time; more would only take the processor from who serves",
    ),
    *_rows(
        """
        offsets.topic.compression.codec int 0
        """,
        IGNORED,
        "the records of the broker's own topics are small, and are not compressed",
    ),
    *_rows(
        """
        ~unstable.api.versions.enable boolean false
        ~unstable.feature.versions.enable boolean false
        """,
        IGNORED,
        "there are no unfinished versions to open up",
    ),
    *_rows(
        """
        ~zookeeper.client.secure string -
        ~zookeeper.clientCnxnSocket string -
        ~zookeeper.connection.timeout.ms string -
        ~zookeeper.max.in.flight.requests string -
        ~zookeeper.metadata.migration.enable string -
        ~zookeeper.ssl.cipher.suites string -
        ~zookeeper.ssl.crl.enable string -
        ~zookeeper.ssl.enabled.protocols string -
        ~zookeeper.ssl.endpoint.identification.algorithm string -
        ~zookeeper.ssl.keystore.location string -
        ~zookeeper.ssl.keystore.password string -
        ~zookeeper.ssl.keystore.type string -
        ~zookeeper.ssl.ocsp.enable string -
        ~zookeeper.ssl.protocol string -
        ~zookeeper.ssl.truststore.location string -
        ~zookeeper.ssl.truststore.password string -
        ~zookeeper.ssl.truststore.type string -
        ~zookeeper.sync.time.ms string -
        """,
        IGNORED,
        "Kafka 4 has no ZooKeeper; a cluster's sessions take the settings flakelog.ids.zookeeper.*",
    ),
    *_rows(
        """
        ~zookeeper.ssl.client.enable boolean false
        """,
        REFUSED,
        "a cluster's sessions take TLS from another setting; set flakelog.ids.zookeeper.ssl.client.enable",
        ("", "false"),
    ),
    *_rows(
        """
        ~password.encoder.cipher.algorithm string AES/CBC/PKCS5Padding
        ~password.encoder.iterations int 4096
        ~password.encoder.key.length int 128
        ~password.encoder.keyfactory.algorithm string -
        """,
        IGNORED,
        "passwords are encrypted as by default; each text names how it was made",
    ),
    *_rows(
        """
        ~auto.include.jmx.reporter string -
        ~broker.id.generation.enable string -
        ~delegation.token.master.key string -
        ~eligible.leader.replicas.enable string -
        ~group.coordinator.new.enable string -
        ~group.share.enable string -
        ~inter.broker.protocol.version string -
        ~log.message.downconversion.enable string -
        ~log.message.format.version string -
        ~offsets.commit.required.acks string -
        ~quota.consumer.default string -
        ~quota.producer.default string -
        ~reserved.broker.max.id string -
        """,
        IGNORED,
        "Kafka 4 has it no longer, and nothing takes its place",
    ),
    *_rows(
        """
        ~follower.replication.throttled.rate long -
        ~leader.replication.throttled.rate long -
        ~replica.alter.log.dirs.io.max.bytes.per.second long -
        """,
        IGNORED,
        "copies between brokers or disks are not throttled",
    ),
    *_rows(
        """
        ~advertised.host.name string -
        ~advertised.port string -
        ~host.name string -
        ~port string -
        """,
        REFUSED,
        "Kafka 3 took it away; listeners=PLAINTEXT://host:port says where the broker listens, "
        "advertised.listeners how clients reach it",
        (),
    ),
    *_rows(
        """
        ~log.message.timestamp.difference.max.ms long -
        """,
        REFUSED,
        "Kafka 4 took it away; set log.message.timestamp.before.max.ms and log.message.timestamp.after.max.ms",
        (),
    ),
]

_TOPIC_ROWS = [
    *_rows(
        """
        cleanup.policy list delete
        compression.gzip.level int -1
        compression.lz4.level int 9
        compression.zstd.level int 3
        compression.type string producer
        delete.retention.ms long 86400000
        file.delete.delay.ms long 60000
        flush.messages long 9223372036854775807
        flush.ms long 9223372036854775807
        index.interval.bytes int 4096
        max.compaction.lag.ms long 9223372036854775807
        max.message.bytes int 1048588
        message.timestamp.after.max.ms long 3600000
        message.timestamp.before.max.ms long 9223372036854775807
        message.timestamp.type string CreateTime
        min.cleanable.dirty.ratio double 0.5
        min.compaction.lag.ms long 0
        min.insync.replicas int 1
        retention.bytes long -1
        retention.ms long 604800000
        segment.bytes int 1073741824
        segment.ms long 604800000
        unclean.leader.election.enable boolean false
        """,
        HONOURED,
        "",
    ),
    *_rows(
        """
        follower.replication.throttled.replicas list
        leader.replication.throttled.replicas list
        """,
        IGNORED,
        "copies between brokers are not throttled",
    ),
    *_rows(
        """
        local.retention.bytes long -2
        local.retention.ms long -2
        remote.log.copy.disable boolean false
        remote.log.delete.on.disable boolean false
        """,
        IGNORED,
        "there is no tiered storage",
    ),
    *_rows(
        """
        preallocate boolean false
        segment.index.bytes int 10485760
        segment.jitter.ms long 0
        """,
        IGNORED,
        "it changes speed, never what a client sees",
    ),
    *_rows(
        """
        remote.storage.enable boolean false
        """,
        REFUSED,
        "there is no tiered storage; leave it out, or set it to false",
        ("", "false"),
    ),
    *_rows(
        """
        ~internal.segment.bytes int -
        """,
        REFUSED,
        "it is for Kafka's own tests; segment.bytes is for everybody",
        (),
    ),
    *_rows(
        """
        ~message.timestamp.difference.max.ms long -
        """,
        REFUSED,
        "Kafka 4 took it away; set message.timestamp.before.max.ms and message.timestamp.after.max.ms",
        (),
    ),
    *_rows(
        """
        ~message.downconversion.enable boolean -
        ~message.format.version string -
        """,
        REFUSED,
        "Kafka 4 took it away: batches are kept as they came, in the newest format, for clients of Kafka 0.11 "
        "and later; leave it out",
        (),
    ),
]

_PREFIXES = [
    (
        "config.providers.",
        KafkaSetting(
            "config.providers.*",
            "string",
            None,
            REFUSED,
            "FileConfigProvider, DirectoryConfigProvider and EnvVarConfigProvider are served, without parameters",
            _PROVIDER_CLASSES,
        ),
    ),
    (
        "rsm.config.",
        KafkaSetting("rsm.config.*", "string", None, IGNORED, "there is no tiered storage"),
    ),
    (
        "rlmm.config.",
        KafkaSetting("rlmm.config.*", "string", None, IGNORED, "there is no tiered storage"),
    ),
    (
        "confluent.",
        KafkaSetting("confluent.*", "string", None, IGNORED, "it is of Confluent's distribution, not of Kafka"),
    ),
]

_BROKER = {row.name: row for row in _BROKER_ROWS}
_TOPIC = {row.name: row for row in _TOPIC_ROWS}
