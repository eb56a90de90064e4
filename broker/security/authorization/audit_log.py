"""The audit log: a line for each request that is denied, and for each change of rules and credentials.

The number of lines in a second is limited, because a client that repeats a denied request must not fill the disk. The
log then says how many lines it left out. A client's text stands in quotes, without controls, so that it cannot pass for
another line or another part of a line.
"""

from collections.abc import Callable

from broker.security.authorization.acl import AclBinding, Operation, PatternType, ResourceType

SECOND_MS = 1_000
TEXT_MAX = 255
"""A longer text is cut. No name of Kafka's is longer."""
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

    def added(self, principal: str, host: str, binding: AclBinding) -> None:
        self._report(f"{shown(principal)} from {shown(host)} added an access rule: {described(binding)}")

    def removed(self, principal: str, host: str, binding: AclBinding) -> None:
        self._report(f"{shown(principal)} from {shown(host)} removed an access rule: {described(binding)}")

    def altered_password(
        self, principal: str | None, host: str, user: str, mechanism: str, *, is_deleted: bool
    ) -> None:
        """Note that a client set or deleted a password of SCRAM. Without an authorizer its principal is None."""
        client = shown(host) if principal is None else f"{shown(principal)} from {shown(host)}"
        self._report(f"{client} {'deleted' if is_deleted else 'set'} the {mechanism} password of user {shown(user)}")

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
    """Return a rule as one line: User:ada is allowed to READ the Topic orders from all hosts."""
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
