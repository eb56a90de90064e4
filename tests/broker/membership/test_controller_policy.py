"""The settings that decide about leaders: the controller reads them at each decision, for brokers and for topics."""

import pytest

from broker.cluster.documents import TopicPartition
from broker.cluster.policy import Rebalance
from broker.metadata.topic import NO_LEADER
from tests.broker.engine_client import CREATE_TOPICS
from tests.broker.engine_cluster import EngineCluster
from tests.broker.membership.cluster_steps import alter

TOPIC, BROKER = 2, 4
RETRY_MS = 1_000
UNCLEAN = "unclean_leader_election_enable"


class Replicated:
    """A cluster of three brokers, and the topic `flights`, which all but the controller have a copy of."""

    def __init__(self, configs=(), **settings):
        self.cluster = EngineCluster(3, replication_enable=True, **settings)
        self.controller = self.cluster.controller
        self.replicas = [number for number in self.cluster.nodes if number != self.controller.id]
        given = [{"partition_index": 0, "broker_ids": self.replicas}]
        fields = {"name": "flights", "num_partitions": -1, "replication_factor": -1, "assignments": given}
        entries = [{"name": name, "value": value} for name, value in dict(configs).items()]
        request = {"topics": [fields | {"configs": entries}], "timeout": 30_000, "validate_only": False}
        (answer,) = self.cluster.client(self.controller.id).ask(CREATE_TOPICS, 7, request).topics
        assert answer.error_code == 0

    @property
    def leadership(self):
        return self.controller.member.controller.context.leadership[TopicPartition("flights", 0)]

    def die(self, broker_id):
        self.cluster.kill(broker_id)
        self.cluster.expire(broker_id)

    def lose_the_isr(self):
        """Kill both replicas, and start the one that has left the ISR."""
        first, last = self.replicas
        self.die(first)
        assert self.leadership.isr == (last,)
        self.die(last)
        self.cluster.restart(first)
        self.cluster.later(RETRY_MS)  # the controller repeats the orders that met no listener
        return first

    def alter(self, kind, name, **settings):
        assert alter(self.cluster, self.controller.id, kind, name, **settings) == 0
        self.cluster.settle()


def test_a_replica_outside_the_isr_does_not_lead_by_default():
    world = Replicated()
    world.lose_the_isr()
    assert world.leadership.leader == NO_LEADER


@pytest.mark.parametrize("kind, name", [(TOPIC, "flights"), (BROKER, ""), (BROKER, None)])
def test_it_leads_as_soon_as_the_topic_or_the_controllers_broker_allows_that_and_the_operator_hears_of_it(kind, name):
    world = Replicated()
    returned = world.lose_the_isr()
    world.alter(kind, str(world.controller.id) if name is None else name, **{UNCLEAN: "true"})
    assert world.leadership.leader == returned
    (line,) = [line for line in world.controller.reported if "leads, because" in line]
    assert f"broker {returned} leads" in line and "unclean.leader.election.enable is true" in line


def test_the_setting_of_a_topic_goes_before_the_brokers():
    world = Replicated(configs={"unclean.leader.election.enable": "false"}, **{UNCLEAN: True})
    returned = world.lose_the_isr()
    assert world.leadership.leader == NO_LEADER
    request = {"name": "unclean.leader.election.enable", "config_operation": 1, "value": None}
    resource = {"resource_type": TOPIC, "resource_name": "flights", "configs": [request]}
    world.cluster.client(world.controller.id).ask(44, 1, {"resources": [resource], "validate_only": False})
    assert world.leadership.leader == returned


def test_a_new_value_of_another_setting_elects_nobody():
    world = Replicated()
    world.lose_the_isr()
    world.alter(TOPIC, "flights", retention_ms="1000")
    assert world.leadership.leader == NO_LEADER


def test_the_controller_reads_the_minimum_of_a_topic_as_it_is_now():
    world = Replicated(min_insync_replicas=2)
    policy = world.controller.member.controller.policy
    assert policy.min_isr("flights") == 2
    world.alter(TOPIC, "flights", min_insync_replicas="1")
    assert (policy.min_isr("flights"), policy.min_isr("others")) == (1, 2)


@pytest.mark.parametrize(
    "settings, rebalance",
    [
        ({}, Rebalance(300_000, 10)),
        (
            {"leader_imbalance_check_interval_seconds": 20, "leader_imbalance_per_broker_percentage": 0},
            Rebalance(20_000, 0),
        ),
        ({"auto_leader_rebalance_enable": False}, None),
    ],
)
def test_leaderships_go_back_as_often_as_the_settings_say(settings, rebalance):
    assert Replicated(**settings).controller.member.controller.policy.rebalance == rebalance


def test_without_replication_the_settings_decide_nothing():
    cluster = EngineCluster(1, replication_enable=False, unclean_leader_election_enable=True, min_insync_replicas=3)
    policy = cluster.controller.member.controller.policy
    assert (policy.min_isr("flights"), policy.allows_unclean("flights"), policy.rebalance) == (1, False, None)
