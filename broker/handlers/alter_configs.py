"""AlterConfigs, v0 to v2.

Behaviour: replaces the settings of topics and brokers by those of the request; a setting it does not name gets its
default back. Each resource is altered or refused separately. A change takes effect at once, and holds after a restart.
"""

from typing import Any

from broker.now import Now
from broker.services.config_resources import Answer, Properties, alter_each, refuse_null
from broker.services.context import RequestContext
from broker.steps import Steps
from broker.waiting.purgatory import Delayed


def handle(call: RequestContext, now: Now) -> Steps[Answer | Delayed[Answer]]:
    return alter_each(call, _given, now)


def _given(resource: Any, before: Properties) -> Properties:
    return {config.name: refuse_null(config.name, config.value) for config in resource.configs}
