"""The facts that a broker brings into a cluster, which no event of its life changes."""

from dataclasses import dataclass

from broker.cluster.documents import Registration
from broker.security.password_encoder import PasswordEncoder, PlainPasswords


@dataclass(frozen=True)
class Membership:
    """The facts that a broker brings into a cluster. Brokers reach each other on `listener`.

    `more_listeners` serve them too, while that changes.

    `boot_id` is the id of this boot of the kernel, "" if the system does not tell it.
    """

    broker_id: int
    registration: Registration
    listener: str
    cluster_id: str
    is_new_directory: bool
    session_timeout_ms: int
    boot_id: str = ""
    has_authorizer: bool = False
    """True if clients may do what the cluster's access rules allow."""
    more_listeners: tuple[str, ...] = ()
    passwords: PasswordEncoder = PlainPasswords()
    """Encodes the passwords in the settings of brokers, which the coordinator keeps."""
    coordinator_name: str = "the coordinator of the cluster"
    """Names the coordinator in messages."""
    directory_name: str = "The data directory"
    """Names the data directory in messages, with a capital letter."""

    @property
    def listeners_of_brokers(self) -> frozenset[str]:
        return frozenset({self.listener, *self.more_listeners})
