"""The embedded engine on a simulated clock: turns, stopping, crashing; tests/compat runs it as a process."""

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from spout.api import Spout
from spout.config import TopologyConfig
from spout.log_spout import LogSpout
from spout.runner import Runner, RunnerState
from spout.topology import Topology, TopologyError
from tests.spout.worlds import Collect, SpoutWorld


def runner_of(world, bolt=None, config=TopologyConfig()):
    topology = Topology("t")
    topology.spout("log", LogSpout("t"))
    topology.bolt("collect", bolt or Collect()).shuffle("log")
    return Runner(topology, config=config, world=world, reactor=Clock())


def turn(runner, times=20):
    """Let the reactor turn without advancing the clock."""
    for _ in range(times):
        runner._reactor.advance(0)


def ended(deferred):
    """Return the failures of a fired Deferred, [None] for success, or [] if it has not fired."""
    results = []
    deferred.addBoth(results.append)
    return [getattr(result, "value", None) for result in results]


def test_it_works_turn_by_turn_and_an_answer_wakes_it():
    world = SpoutWorld()
    runner = runner_of(world)
    runner.start()
    turn(runner)
    world.log.append(b"late")
    turn(runner)
    (collect,) = runner.executor.instances_of("collect")
    assert [values[-1] for values in collect.seen] == [b"late"]


def test_a_stop_stores_progress_closes_and_ends_the_run():
    world = SpoutWorld()
    world.log.append(b"a")
    runner = runner_of(world)
    run = runner.start()
    turn(runner)
    stopped = runner.stop()
    assert ended(stopped) == [] and runner.state is RunnerState.DRAINING
    turn(runner)
    assert ended(stopped) == ended(run) == [None] and runner.state is RunnerState.STOPPED
    assert b'"offset":1' in world.ensemble.nodes["/flakelog-spouts/t.log/partition_0"].data
    assert runner._reactor.getDelayedCalls() == [] and ended(runner.stop()) == [None]


def test_a_stop_waits_for_tuples_in_flight_no_longer_than_it_may():
    class Never(Collect):
        auto_ack = False

    world = SpoutWorld()
    world.log.append(b"a")
    patient, hasty = runner_of(world, Never()), runner_of(SpoutWorld(), Never(), TopologyConfig(topology_drain_ms=0))
    for runner in (patient, hasty):
        runner.start()
        turn(runner)
        runner.stop()
        turn(runner)
    assert (patient.state, hasty.state) == (RunnerState.DRAINING, RunnerState.STOPPED)


def test_what_a_spout_raises_ends_the_run_with_it_and_closes_everything():
    closed = []

    class Broken(Spout):
        def next_tuple(self):
            raise OSError("gone")

        def close(self):
            closed.append(True)

    topology = Topology("t")
    topology.spout("broken", Broken())
    runner = Runner(topology, world=SpoutWorld(), reactor=Clock())
    run = runner.start()
    turn(runner)
    (error,) = ended(run)
    assert isinstance(error, OSError) and closed == [True] and runner.state is RunnerState.STOPPED
    assert isinstance(runner.stop(), Deferred)


def test_a_run_begins_once():
    runner = runner_of(SpoutWorld())
    runner.start()
    with pytest.raises(RuntimeError, match="this runner is running: a run begins once"):
        runner.start()


def test_an_abort_closes_at_once_and_stores_nothing_more():
    class Never(Collect):
        auto_ack = False

    world = SpoutWorld()
    world.log.append(b"a")
    runner = runner_of(world, Never())
    run = runner.start()
    turn(runner)
    runner.abort()
    assert ended(run) == [None] and runner.state is RunnerState.STOPPED and runner._reactor.getDelayedCalls() == []
    runner.abort()


def test_a_paused_topology_reads_nothing_until_it_resumes():
    world = SpoutWorld()
    runner = runner_of(world)
    runner.start()
    turn(runner)
    (collect,) = runner.executor.instances_of("collect")
    runner.pause("log")
    world.log.append(b"late")
    turn(runner)
    assert collect.seen == []
    runner.resume()
    turn(runner)
    assert [values[-1] for values in collect.seen] == [b"late"]


def test_only_a_running_topology_can_pause():
    runner = runner_of(SpoutWorld())
    with pytest.raises(RuntimeError, match="this runner is new: only a running topology can pause"):
        runner.pause()
    runner.start()
    with pytest.raises(TopologyError, match="there is no spout 'collect' in 't'; there are: log"):
        runner.pause("collect")
    with pytest.raises(TopologyError, match="there is no spout 'x'"):
        runner.resume("x")
