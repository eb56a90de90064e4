"""The audit log: a line for each request that is denied, and for each that has changed something.

The number of lines about denied requests in a second is limited, because a client that repeats a denied request must
not fill the disk. The log then says how many lines it left out. Changes are not limited: for each the broker writes
more than its line. The line comes with the change, and not with the answer, for which a client need not wait. A
client's text stands in quotes, without controls, so that it cannot pass for another line or another part of a line.
"""

from collections.abc import Callable, Iterable

from broker.security.authorization.acl import AclBinding, Operation, PatternType, ResourceType
from coordination.listing import listed

SECOND_MS = 1_000
TEXT_MAX = 255
"""A longer text is cut. No name of Kafka's is longer."""
NAMED_MAX = 20
"""The things that a line about a change names; a request may change thousands."""
TYPE_NAMES = {
    ResourceType.TOPIC: "Topic",
    ResourceType.GROUP: "Group",
    ResourceType.CLUSTER: "Cluster",
    ResourceType.TRANSACTIONAL_ID: "TransactionalId",
    ResourceType.DELEGATION_TOKEN: "DelegationToken",
    ResourceType.USER: "User",
}


class AuditLog:
    """Writes lines with `report`, at most `lines_max` of denied requests a second by the clock `now_ms`."""

    def __init__(self, report: Callable[[str], None], now_ms: Callable[[], int], lines_max: int) -> None:
        self._report = report
        self._now_ms = now_ms
        self._lines_max = lines_max
        self._second = 0
        self._lines = 0
        self._left_out = 0
        self.denied_total = 0
        """The denied operations since the start."""

    def denied(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType, name: str, api: str
    ) -> None:
        """Note that an operation was denied, in the words of Kafka's authorizer."""
        self.denied_total += 1
        if self._has_room():
            self._report(
                f"Principal = {shown(principal)} is Denied operation = {operation.name} from host = {shown(host)} on "
                f"resource = {TYPE_NAMES[resource_type]}:LITERAL:{shown(name)} for request = {api}"
            )

    def changed(
        self, principal: str | None, host: str, change: str, names: Iterable[str], failure: object = None
    ) -> None:
        """Note that a client's request has changed things: "deleted topics " and their names, for example.

        Without an authorizer its principal is None. Text that clients chose freely, such as the name of a group, has to
        be `shown`. A change with a `failure` may be stored in part: the coordinator of a cluster takes it in pieces.
        """
        client = shown(host) if principal is None else f"{shown(principal)} from {shown(host)}"
        outcome = "" if failure is None else f"; this failed, at least in part: {failure}"
        self._report(f"{client} {change}{listed(names, NAMED_MAX)}{outcome}")

    def _has_room(self) -> bool:
        second = self._now_ms() // SECOND_MS
        if second != self._second:
            if self._left_out:
                self._report(f"{self._left_out} more operations were denied, without a line for each")
            self._second, self._lines, self._left_out = second, 0, 0
        if self._lines >= self._lines_max:
            self._left_out += 1
            return False
        self._lines += 1
        return True


def described(binding: AclBinding) -> str:
    """Return a rule as one line: User:ada is allowed to READ Topic orders from host *."""
    is_prefix = binding.pattern_type is PatternType.PREFIXED
    verb = "is allowed to" if binding.permission.name == "ALLOW" else "is denied to"
    resources = f"{TYPE_NAMES[binding.resource_type]}{'s that begin with' if is_prefix else ''} {shown(binding.name)}"
    return f"{shown(binding.principal)} {verb} {binding.operation.name} {resources} from host {shown(binding.host)}"


def shown(text: str) -> str:
    """Return a client's text without controls, cut, and in quotes unless it is one word."""
    cut = text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}..."
    if cut.isascii() and cut.isprintable() and not {" ", '"', "\\"}.intersection(cut):
        return cut
    escaped = (
        letter if letter.isprintable() and letter not in '"\\' else f"\\u{{{ord(letter):x}}}" for letter in cut
    )
    return f'"{"".join(escaped)}"'
