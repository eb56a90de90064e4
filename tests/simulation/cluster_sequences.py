"""Sequences of events that a history of the cluster seldom has by chance."""

from broker.cluster.documents import NO_LEADER, LeaderAndIsr, state_path
from broker.membership.calls import Link as LinkKind
from tests.broker.engine_cluster import SESSION_MS
from tests.simulation.cluster_clients import TOPICS
from tests.simulation.replicated_bursts import Write

WRITES, WRITE_MS = 300, 10
LED_MS = 3_000
"""The longest wait until a broker that starts leads its partition again."""
REGISTRATION_MS = 3_000
"""The longest wait for the node of a broker that starts."""


def replace_controller_during_registration(world):
    """A broker registers, and then reads the epoch of the next controller.

    The former controller has seen the broker's node. It is a zombie now, and its orders arrive before those of the next
    controller.
    """
    former = world.active_controller()
    others = [machine for machine in world.machines.values() if former is not None and machine is not former.machine]
    if former is None or len(others) < 2:
        return
    world.log(f"replace controller {former.id} during a registration")
    machine, *successors = world.random.sample(others, len(others))
    machine.kill(at_once=True)
    machine.start()
    registers, ms_left = machine.process, REGISTRATION_MS
    while registers.is_alive and not registers.has_node and ms_left:
        world.run(1)
        ms_left -= 1
    registers.stall(SESSION_MS - 1_000)
    world.run(300)
    for successor in successors:
        world.cut(successor.id, machine.id, LinkKind.ORDERS)
    former.coordinator.cut()
    former.coordinator.expire()
    world.run(SESSION_MS + 1_000)
    former.coordinator.heal()
    world.heal_cuts_of(LinkKind.ORDERS)


def restart_with_clock_behind(world):
    """A broker stamps the records of one partition. Its machine's clock goes back, and the next life of the broker
    stamps records of another partition in the time that the first had."""
    led = {}
    for partition in world.ensemble.image_of_states():
        if partition.topic in TOPICS and (leader := _leader_of(world, partition)) != NO_LEADER:
            led.setdefault(leader, []).append(partition)
    led = {broker_id: partitions for broker_id, partitions in led.items() if len(partitions) > 1}
    if not led:
        return
    broker_id = world.random.choice(list(led))
    first, second = world.random.sample(led[broker_id], 2)
    world.log(f"restart {broker_id} with its clock behind")
    _write(world, first, broker_id)
    machine = world.machines[broker_id]
    machine.wall_step_ms -= WRITES * WRITE_MS
    machine.kill(at_once=True)
    machine.start()
    ms_left = LED_MS
    while _leader_of(world, second) != broker_id and ms_left:
        world.run(WRITE_MS)
        ms_left -= WRITE_MS
    _write(world, second, broker_id)


def _leader_of(world, partition):
    """Return the leader of a partition, NO_LEADER if it has none or is deleted."""
    path = state_path(partition)
    node = world.ensemble.nodes.get(path)
    return NO_LEADER if node is None else LeaderAndIsr.decode(path, node).leader


def _write(world, partition, leader):
    for _ in range(WRITES):
        world.begin(Write(world, partition, leader))
        world.run(WRITE_MS)


SEEDS_OF_A_SEQUENCE = 16
"""Each sixteenth seed has the same sequence, or none."""
SEQUENCES = {7: restart_with_clock_behind, 15: replace_controller_during_registration}
"""By the remainder of the seed: the sequence in the middle of its history."""
