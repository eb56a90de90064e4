"""Settings of a consumer in the registry that cannot work together are refused."""

import pytest

from broker.client.connector.config import RegistryGroupConfig
from idgen.settings import InvalidSetting


def test_a_consumer_waits_for_a_dead_one_as_long_as_its_session_lasts():
    """Kafka 0.8: "zookeeper.session.timeout.ms < rebalance.max.retries * rebalance.backoff.ms"."""
    with pytest.raises(InvalidSetting, match=r"rebalance.retries.max=2: times rebalance.backoff.ms must be at least"):
        RegistryGroupConfig(rebalance_retries_max=2)
    RegistryGroupConfig(rebalance_retries_max=3)
    RegistryGroupConfig(rebalance_retries_max=0, rebalance_goes_on=True)
