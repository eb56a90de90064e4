"""The settings of a mirror."""

from broker.client.mirror.settings import ClusterSettings, MirrorSettings


def test_a_password_is_not_shown():
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="ada" password="ada-secret";'
    source = ClusterSettings(servers="one:9092", security={"sasl.jaas.config": jaas})
    settings = MirrorSettings(source=source, target=ClusterSettings(servers="two:9092"))
    assert "one:9092" in repr(settings) and "ada-secret" not in repr(settings)
