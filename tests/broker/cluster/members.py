"""Contexts and states for tests of the members of ISR and ELR."""

from broker.cluster.controller_context import ControllerContext
from broker.cluster.documents import Assignment, Endpoint, LeaderAndIsr, Life, Registration, Topic, TopicPartition
from broker.cluster.policy import Policy

PARTITION = TopicPartition("t", 0)
KAFKA = None
"""The life of a broker of Kafka's, which says nothing of it."""


def whole(last=-1):
    return Life(True, last)


def not_whole(last=-1):
    return Life(False, last)


def context_of(lives, replicas=(1, 2, 3), min_isr=2, shutting_down=(), allows_unclean=False):
    """Return a context whose live brokers have these lives; the epoch of broker N is 100 + N."""
    policy = Policy(min_isr=lambda topic: min_isr, allows_unclean=lambda topic: allows_unclean)
    context = ControllerContext(policy)
    context.add_topic("t", Topic(None, {0: Assignment(replicas)}))
    for broker_id, life in lives.items():
        endpoints = (Endpoint("PLAINTEXT", "PLAINTEXT", "h", 1),)
        context.add_broker(broker_id, Registration(endpoints, 0, life=life), 100 + broker_id)
    context.shutting_down.update(shutting_down)
    return context


def state_of(leader, isr, elr=(), lives=None):
    """Return a state in leader epoch 4."""
    return LeaderAndIsr(leader, isr, leader_epoch=4, partition_epoch=9, elr=elr, lives=lives or {})
