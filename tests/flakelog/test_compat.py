"""`flakelog compat` and docs/compat.md: the supported part of Kafka, and the differences."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from broker.engine.api_table import APIS
from broker.settings.kafka_apis import KAFKA_APIS, NOT_SERVED
from flakelog.cli import main
from flakelog.commands.compat import page

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "compat.md"


def test_the_page_is_what_the_program_says():
    assert PAGE.read_text() == page(), "run: flakelog compat --markdown > docs/compat.md"


@pytest.mark.parametrize("key", APIS)
def test_an_api_served_is_one_of_kafkas_in_versions_kafka_has(key):
    api = APIS[key]
    name, oldest, newest = KAFKA_APIS[key]
    assert api.name == name
    assert oldest <= api.oldest <= api.newest <= newest


def test_what_is_not_served_has_its_reason():
    names = {name for key, (name, _, _) in KAFKA_APIS.items() if key not in APIS}
    assert names == NOT_SERVED.keys()


def test_programs_read_it_as_json():
    compat = json.loads(CliRunner().invoke(main, ["compat", "--json"]).output)
    assert compat["apis"][0] == {"key": 0, "name": "Produce", "kafka": [3, 13], "served": [3, 13], "reason": ""}
    standings = {setting["name"]: setting["standing"] for setting in compat["broker_settings"]}
    assert standings["listeners"] == "honoured" and standings["num.io.threads"] == "ignored"
    assert compat["differences"]


def test_people_read_tables():
    done = CliRunner().invoke(main, ["compat"])
    assert done.exit_code == 0
    assert "AddRaftVoter" in done.output and "What differs" in done.output


def test_a_default_that_is_only_written_otherwise_is_no_difference():
    """A default that Kafka gives under another name is equal: log.retention.ms is log.retention.hours=168 in Kafka."""
    others = page().partition("## Defaults that are others")[2]
    assert "log.retention.ms" not in others and "`listeners`" in others
