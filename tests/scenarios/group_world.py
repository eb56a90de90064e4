"""The commands of group_*.txt: one group of a GroupCoordinator, and processes with short names.

Like a real client, a process remembers the member id and generation it last received. Sessions last 10 s, rebalances
wait one minute, and an empty group waits 3 s for more members; all are Kafka's defaults or usual values.
"""

from broker.wire.errors import ErrorCode
from tests.broker.group.conftest import House
from tests.scenarios.scenario import join_parts


class GroupWorld:
    def __init__(self):
        self.output = []
        self.house = House()
        self.joined = {}
        self.instances = {}
        self.waiting = []

    def do_at(self, now_ms):
        self.house.at(int(now_ms))
        self._hear()

    def do_restart(self):
        """Start another coordinator from __consumer_offsets; answers outstanding at the old one never come."""
        self.house = self.house.restarted()
        self.waiting.clear()

    def do_join(self, name, instance=None, id_required="no"):
        member = self.joined.get(name)
        self.instances.setdefault(name, instance)
        pending = self.house.join(
            member.member_id if member else "",
            client=name, instance=self.instances[name], id_required=id_required == "yes", may_skip=True,
        )  # fmt: skip
        self._wait(name, "join", pending)

    def do_sync(self, name, **shares):
        """Send a sync; the leader's also assigns shares, given by process name."""
        given = {self.joined[process].member_id: share.encode() for process, share in shares.items()}
        self._wait(name, "sync", self.house.sync(self.joined[name], given, instance_id=self.instances[name]))

    def do_heartbeat(self, *names):
        for name in names:
            member = self.joined[name]
            error = self.house.heartbeat(member.member_id, member.generation, instance=self.instances[name])
            self.output.append(f"heartbeat of {name}: {_error(error)}")
        self._hear()

    def do_leave(self, name):
        ((_, error),) = self.house.leave(self.joined[name].member_id).members
        self.output.append(f"leave of {name}: {_error(error)}")
        self._hear()

    def do_commit(self, name, generation=None, **offsets):
        member = self.joined[name]
        generation = member.generation if generation is None else int(generation)
        placed = [(*_partition(partition), int(offset)) for partition, offset in offsets.items()]
        errors = self.house.commit(
            *placed, member_id=member.member_id, generation=generation, instance_id=self.instances[name]
        )
        self.output += [f"commit of {name}: {_error(error)}" for error in errors]

    # answers, immediate or triggered by a later command

    def _wait(self, name, verb, pending):
        if pending.result is None:
            self.output.append(f"{verb} of {name} waits")
        if all(pending is not other for _, _, other in self.waiting):
            self.waiting.append((name, verb, pending))
        self._hear()

    def _hear(self):
        answered = [wait for wait in self.waiting if wait[2].result is not None]
        self.waiting = [wait for wait in self.waiting if wait[2].result is None]
        for name, verb, pending in answered:
            heard = self._joined if verb == "join" else self._synced
            self.output.append(f"{verb} of {name}: {heard(name, pending.result)}")

    def _joined(self, name, result):
        if result.error is ErrorCode.NONE or result.error is ErrorCode.MEMBER_ID_REQUIRED:
            self.joined[name] = result
        if result.error:
            return f"{result.error.name} {result.member_id}".rstrip()
        leads = result.leader == result.member_id
        members = " ".join(member.member_id for member in result.members)
        return join_parts(
            f"generation {result.generation}",
            f"is {result.member_id}",
            f"leads {members}" if leads else f"leader {result.leader}",
            "assigns nothing" if result.skip_assignment else "",
        )

    def _synced(self, name, result):
        return result.error.name if result.error else f"gets {result.assignment.decode() or 'nothing'}"

    def state(self):
        group = self.house.coordinator.describe("g")
        members = [f"{member.member_id}={member.assignment.decode() or '-'}" for member in group.members]
        offsets = [f"{f.topic}-{f.partition}={f.committed.offset}" for f in self.house.coordinator.fetch("g", None)]
        return join_parts(group.state, " ".join(members), "offsets " + " ".join(offsets) if offsets else "")


def _error(error):
    return error.name if error else "taken"


def _partition(name):
    topic, _, partition = name.rpartition("-")
    return topic, int(partition)
