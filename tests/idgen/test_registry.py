"""The registry: its list of workers, the neighbours of a process, and its marks (idgen.registry)."""

from coordination.memory import MemoryCoordinator
from coordination.port import Create, run
from idgen.registry import Mark, Registry
from tests.idgen.claims import held
from tests.idgen.driving import NOW


def test_the_workers_are_listed_with_their_holders_marks_and_roles(session, other, ensemble):
    """The list includes workers without a session whose mark has not passed, and Twitter's, which have no mark."""
    dead = MemoryCoordinator(ensemble)
    assert run(session, Registry().workers()) == []
    held(dead, "a", registry=Registry(address="a:1", role="log"))
    held(session, "b", registry=Registry(address="b:1"))
    dead.expire()
    other.execute(Create("/snowflake-servers/7", b"twitter:7609", ephemeral=True))
    other.execute(Create("/snowflake-servers-marks/9", b"torn"))
    first, second, third, fourth = run(other, Registry().workers())
    assert (first.number, first.living, first.address, first.mark.role) == (0, False, "a:1", "log")
    assert (second.number, second.living, second.address, second.mark.high_water_ms) == (1, True, "b:1", NOW + 30_000)
    assert third == (7, True, "twitter:7609", None, None)
    assert (fourth.number, fourth.mark) == (9, None) and "holds no high-water mark" in fourth.problem


def test_each_process_asks_the_few_that_follow_it_round_the_circle(session):
    """If each of a thousand processes asked all the others, every round would cost a million questions."""
    for number in (0, 1, 4, 9, 30):
        session.execute(Create(f"/snowflake-servers/{number}", b"x", ephemeral=True))

    def neighbours(own, most):
        return [worker.number for worker in run(session, Registry().neighbours(own, most))]

    assert neighbours({4}, 2) == [9, 30]
    assert neighbours({9}, 3) == [30, 0, 1]
    assert neighbours({0, 30}, 9) == [1, 4, 9]
    assert neighbours(set(), 2) == [0, 1]


def test_a_mark_of_before_there_were_roles_is_read():
    assert Mark.from_bytes("/x", b'{"high_water_ms": 1, "start_ms": 0, "token": "t", "address": "a"}').role == ""
