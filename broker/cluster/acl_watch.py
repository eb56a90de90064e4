"""A broker's view of all access rules in the coordinator (the AclAuthorizer of Kafka 3.9).

At the start of each session the watch reads the rules of all resources. From then on it reads the resources that new
change nodes name (`broker.cluster.change_watch`). While the coordinator is away, the rules that were read last hold.
The shell uses `take_acls`.
"""

from collections.abc import Iterable

from broker.cluster.acl_documents import CHANGE_PATHS, PARENTS, AclResource, decode_acl_change, decode_acls
from broker.cluster.change_watch import ChangeWatch
from broker.cluster.json_document import DamagedDocument
from broker.cluster.procedure import Procedure, read
from broker.cluster.registration import create_if_missing
from broker.security.authorization.acl import AclBinding
from broker.waiting.pending import Pending
from coordination.port import Children, CoordinationError, Get, Node, NoNode


class AclWatch(ChangeWatch[AclResource]):
    """The rules of all resources, as this broker has read them."""

    what = "access rules"
    change_paths = tuple(CHANGE_PATHS)

    def __init__(self, pending: Pending) -> None:
        super().__init__(pending)
        self._acls: dict[AclResource, frozenset[AclBinding]] = {}
        self._is_changed = False

    def take_acls(self) -> frozenset[AclBinding] | None:
        """Return all rules if they have changed since the last call, else None."""
        if not self._is_changed:
            return None
        self._is_changed = False
        return frozenset().union(*self._acls.values())

    # --- the work ------------------------------------------------------------------------------------------------

    def _decode_change(self, path: str, data: bytes) -> AclResource:
        return decode_acl_change(path, data)

    def _prepare(self) -> Procedure[None]:
        for path in (*PARENTS, *CHANGE_PATHS):
            yield from create_if_missing(path)

    def _read_everything(self) -> Procedure[None]:
        resources: list[AclResource] = []
        for parent, names_below in zip(PARENTS, (yield from read([Children(path) for path in PARENTS])), strict=True):
            if isinstance(names_below, CoordinationError) and not isinstance(names_below, NoNode):
                raise names_below
            if isinstance(names_below, tuple):
                resources += [AclResource(*PARENTS[parent], str(name)) for name in names_below]
        self.problems.clear()
        for resource in self._acls.keys() - set(resources):
            del self._acls[resource]
            self._is_changed = True
        yield from self._read(resources)
        self._is_changed = self._is_changed or not self.has_read_all

    def _read(self, keys: Iterable[AclResource]) -> Procedure[None]:
        resources = list(keys)
        outcomes = yield from read([Get(resource.path) for resource in resources])
        for resource, outcome in zip(resources, outcomes, strict=True):
            if isinstance(outcome, CoordinationError) and not isinstance(outcome, NoNode):
                raise outcome
            try:
                acls = decode_acls(resource, outcome.data) if isinstance(outcome, Node) else frozenset()
            except DamagedDocument as error:
                self.problems[resource.path] = str(error)
                continue
            self.problems.pop(resource.path, None)
            if acls != self._acls.get(resource, frozenset()):
                self._acls[resource] = acls
                self._is_changed = True
