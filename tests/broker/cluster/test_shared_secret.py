"""The secret that the brokers of a cluster share."""

from broker.cluster.shared_secret import SHARED_SECRET, shared_secret
from coordination.memory import Ensemble, MemoryCoordinator
from coordination.port import Create
from tests.broker.cluster.procedures import FaultyCoordinator, run


def test_the_first_broker_gives_its_secret_and_all_others_take_it():
    ensemble = Ensemble()
    for own in (b"first", b"second", b"third"):
        assert run(MemoryCoordinator(ensemble), shared_secret(own)) == b"first"


def test_a_broker_that_is_slower_takes_the_others_secret():
    ensemble = Ensemble()

    def another(number):
        if number == 2:
            MemoryCoordinator(ensemble).execute(Create(SHARED_SECRET, b"faster"))

    assert run(FaultyCoordinator(ensemble, before=another), shared_secret(b"slower")) == b"faster"


def test_a_lost_answer_changes_nothing():
    for number in (1, 2, 3):
        assert run(FaultyCoordinator(Ensemble(), number), shared_secret(b"own")) == b"own"
