"""Rows of the table of errors: access rules, and clients without rights. `tests/broker/test_rights.py` has all APIs."""

from broker.wire.errors import ErrorCode as E
from tests.broker.any_api import create_topic
from tests.broker.every_error.case import Case
from tests.broker.every_error.node import ANY_RULE, RULE

STANDARD = {"authorizer_class_name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}
ROOT = STANDARD | {"super_users": "User:ANONYMOUS"}


def add(world, *rules):
    return world.ask("CreateAcls", {"creations": [RULE | rule for rule in rules]})


def transact(world):
    return world.ask("EndTxn", {"transactional_id": "t", "producer_id": 1, "producer_epoch": 0, "committed": True})


def describe(world, *groups):
    return world.ask("DescribeGroups", {"groups": groups, "include_authorized_operations": False})


DENIED = {"inside": True, "settings": STANDARD}
RIGHTS = [
    Case("CreateAcls", E.INVALID_REQUEST, lambda w: add(w, {"resource_name": ""}), inside=True, settings=ROOT),
    Case("CreateAcls", E.POLICY_VIOLATION, lambda w: add(w, {}, {"host": "10.0.0.1"}), inside=True,
         settings=ROOT | {"max_acls": 1}),
    Case("DescribeAcls", E.INVALID_REQUEST, lambda w: w.ask(w.name, ANY_RULE | {"operation": 0}), inside=True,
         settings=ROOT),
    Case("DeleteAcls", E.INVALID_REQUEST, lambda w: w.ask(w.name, {"filters": [ANY_RULE | {"operation": 0}]}),
         inside=True, settings=ROOT),
    Case("DescribeAcls", E.CLUSTER_AUTHORIZATION_FAILED, lambda w: w.ask(w.name, ANY_RULE), **DENIED),
    Case("CreateTopics", E.TOPIC_AUTHORIZATION_FAILED, lambda w: w.ask(w.name, create_topic("made")), **DENIED),
    Case("DescribeGroups", E.GROUP_AUTHORIZATION_FAILED, lambda w: describe(w, "g"), **DENIED),
    Case("EndTxn", E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, transact, **DENIED),
]  # fmt: skip
