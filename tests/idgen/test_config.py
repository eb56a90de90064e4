"""idgen.config: settings by their property names, validated once, refused by name."""

import re

import pytest

from idgen.config import IdgenConfig
from idgen.layout import Layout
from idgen.settings import InvalidSetting, from_properties, settings_of


def test_the_defaults_are_the_designs():
    config = IdgenConfig()
    assert config.layout == Layout()
    assert (config.ids_lead_ms, config.ids_raise_interval_ms) == (30_000, 10_000)
    assert (config.ids_max_ahead_ms, config.ids_max_skew_ms) == (500, 10_000)
    assert config.ids_listener == "127.0.0.1:7609"


def test_a_field_is_the_snake_case_of_its_property():
    for setting in settings_of(IdgenConfig):
        assert setting.name.startswith("flakelog.")
        assert setting.name.removeprefix("flakelog.").replace(".", "_") == setting.field


def test_every_setting_says_what_it_does_and_its_unit_is_in_its_name():
    for setting in settings_of(IdgenConfig):
        assert len(setting.doc) > 10, setting.name
        if setting.unit:
            assert setting.name.endswith(setting.unit), setting.name
        elif re.search(r"\.(ms|bytes|bits)$", setting.name):
            pytest.fail(f"{setting.name} has no unit")


def test_properties_are_parsed_by_type():
    config = from_properties(
        IdgenConfig, {"flakelog.ids.worker": " 7 ", "flakelog.ids.lead.ms": "60000", "log.segment.bytes": "1"}
    )
    assert (config.ids_worker, config.ids_lead_ms) == (7, 60_000)
    assert from_properties(IdgenConfig, {"flakelog.ids.worker": ""}).ids_worker is None


@pytest.mark.parametrize(
    "properties, reason",
    [
        ({"flakelog.ids.lead.ms": "soon"}, "flakelog.ids.lead.ms=soon: must be a whole number"),
        ({"flakelog.ids.lead.ms": "5"}, "flakelog.ids.lead.ms=5: must be at least 100"),
        ({"flakelog.ids.lead.ms": "15000"}, "flakelog.ids.raise.interval.ms=10000: must be at most half"),
        ({"flakelog.ids.worker": "1024"}, "flakelog.ids.worker=1024: must be between 0 and 1023"),
        ({"flakelog.ids.worker": "1", "flakelog.ids.datacenter": "2"}, "must be between 64 and 95"),
        ({"flakelog.ids.datacenter": "32"}, "datacenter 32 is not in 0..31"),
        ({"flakelog.ids.time.bits": "40"}, "add up to 62 bits"),
        ({"flakelog.ids.max.ahead.ms": "901"}, "must be between 0 and 900"),
        ({"flakelog.ids.registry.path": "servers"}, "must be a path like"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_name(properties, reason):
    with pytest.raises(InvalidSetting, match=re.escape(reason)):
        from_properties(IdgenConfig, properties)


@pytest.mark.parametrize("value, kind", [("5000", "str"), ([5], "list")])
def test_a_value_of_another_type_is_refused_by_name(value, kind):
    with pytest.raises(InvalidSetting, match=rf"flakelog.ids.retry.ms=.*: must be a whole number, not {kind}"):
        IdgenConfig(ids_retry_ms=value)


@pytest.mark.parametrize(
    "settings, wanted",
    [
        ({"ids_zookeeper_set_acl": True}, "set.acl=true: needs flakelog.ids.zookeeper.credentials.file"),
        ({"ids_zookeeper_ssl_truststore_location": "a.pem"}, "truststore.location=a.pem: needs .*enable=true"),
        ({"ids_zookeeper_ssl_keystore_location": "a.pem"}, "keystore.location=a.pem: needs .*enable=true"),
    ],
)
def test_settings_of_zookeeper_that_mean_nothing_alone_are_refused(settings, wanted):
    with pytest.raises(InvalidSetting, match=wanted):
        IdgenConfig(**settings)
