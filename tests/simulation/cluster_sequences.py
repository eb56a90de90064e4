"""Sequences of events that a history of the cluster seldom has by chance."""

from broker.membership.calls import Link as LinkKind
from tests.broker.engine_cluster import SESSION_MS

REGISTRATION_MS = 3_000
"""The longest wait for the node of a broker that starts."""


def replace_controller_during_registration(world):
    """A broker registers, and then reads the epoch of the next controller.

    The former controller has seen the broker's node. It is a zombie now, and its orders arrive before those of the next
    controller.
    """
    former = next((process for process in world.processes() if process.member.controller.is_active), None)
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
