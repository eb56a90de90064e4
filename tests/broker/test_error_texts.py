"""Messages of errors begin with Kafka's text, because scripts search for it (tests/broker/every_error/texts.py)."""

from tests.broker.any_api import EngineLine, World
from tests.broker.engine_client import EngineBroker
from tests.broker.every_error.table import CASES
from tests.broker.every_error.texts import Heard
from tests.broker.test_every_error import SETTINGS


def test_each_message_begins_with_kafkas_text_and_each_text_is_met():
    heard = Heard()
    for case in CASES:
        line = EngineLine(EngineBroker(**SETTINGS | case.settings))
        heard.ask(case, World(line, case.api, case.versions[-1]))
    assert not heard.missing
    assert not heard.others, "\n".join(heard.others)
