"""AlterConfigs, v0 to v2.

Behaviour: the settings of topics and brokers are those of the request and no others; what it does not name goes back to
its default. Each resource is altered or refused by itself; what is altered holds at once, and after a restart.
"""

from typing import Any

from broker.handlers.call import Call
from broker.handlers.config_resources import Properties, alter_each, refuse_null
from broker.now import Now


def handle(call: Call, now: Now) -> dict[str, Any]:
    return alter_each(call, _given)


def _given(resource: Any, before: Properties) -> Properties:
    return {each.name: refuse_null(each.name, each.value) for each in resource.configs}
