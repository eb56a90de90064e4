"""The errors of the Python API: a pool of processes passes them on as they were raised."""

import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from uuid import UUID

import pytest

from broker.client.errors import BrokerError
from broker.wire.errors import ErrorCode
from flakelog import errors

ARGUMENTS = {
    "BrokerError": (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "nope"),
    "IdServiceUnreachable": (("127.0.0.1:1: refused",),),
    "InvalidSetting": ("log.segment.bytes", "x", "must be a whole number"),
    "LayoutExhausted": (2, 1),
    "LeadExhausted": (2, 1),
    "LostData": ("orders-0 lost offsets", ()),
    "MissingId": ("orders-0", 7),
    "MustAbort": (BrokerError(ErrorCode.INVALID_PRODUCER_EPOCH, "producer"),),
    "NoAnswer": ("127.0.0.1:1", 0.5),
    "NoBrokerKnown": ("no session",),
    "NotAuthenticated": ("127.0.0.1:1", "wrong password"),
    "SequenceExhausted": (1, 500),
    "TopicRecreated": ("orders", UUID(int=7)),
    "TryAgain": ("busy", 100),
    "Unreachable": ("127.0.0.1:1", "refused"),
}
"""The arguments of the classes that take more than a message."""


def error_of(name):
    return getattr(errors, name)(*ARGUMENTS.get(name, ("a message",)))


def fail():
    raise error_of("BrokerError")


ERRORS = sorted(name for name in errors.__all__ if issubclass(getattr(errors, name), Exception))


@pytest.mark.parametrize("name", ERRORS)
def test_a_pickled_error_is_the_same(name):
    error = error_of(name)
    restored = pickle.loads(pickle.dumps(error))
    assert (type(restored), str(restored), restored.args) == (type(error), str(error), error.args)
    assert restored.__dict__.keys() == error.__dict__.keys()


def test_a_pool_of_processes_passes_an_error_on():
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        with pytest.raises(BrokerError, match="nope: UNKNOWN_TOPIC_OR_PARTITION") as raised:
            pool.submit(fail).result()
    assert raised.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
