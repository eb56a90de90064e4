"""SCRAM credentials that a start adds (`--add-scram`), unless their users have some already."""

from collections.abc import Sequence

from broker.metadata.change import Change, Credential
from broker.metadata.changes import CREDENTIALS, Planned
from broker.metadata.staged import Staged
from broker.now import Now
from broker.security.sasl.added_scram import AddedScram
from broker.security.sasl.listeners import SCRAM_NUMBERS
from broker.services.context import BrokerServices
from broker.waiting.purgatory import Delayed
from broker.wire.errors import ApiError


def add_credentials(services: BrokerServices, added: Sequence[AddedScram], now: Now) -> None:
    """Store the credentials. A user that has one of the same mechanism keeps it, so that a restart changes nothing.

    In a cluster the coordinator has them soon after this broker serves.
    """

    def begin(at: Now) -> Planned | bool:
        credentials = dict(services.metadata.credentials)
        for scram in added:
            key = scram.user, SCRAM_NUMBERS[scram.mechanism]
            if key not in credentials:
                credentials[key] = Credential(scram.salt, scram.iterations, *scram.keys)
        if credentials == services.metadata.credentials:
            return True
        return Planned(Staged(Change(credentials=credentials)), answer)

    def answer(error: ApiError | None, at: Now) -> bool:
        if error is not None:
            services.report(f"the credentials of --add-scram could not be stored: {error}")
        return True

    if services.is_alone:
        planned = begin(now)
        if isinstance(planned, Planned):
            services.file_executor.run_now(planned.staged, now)
        return
    waiting = services.changes.submit((CREDENTIALS,), begin, now)
    if isinstance(waiting, Delayed):
        services.purgatory.watch(waiting, lambda _: None, now, limited=False)
