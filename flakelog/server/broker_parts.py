"""The broker of a server process, whose sockets are bound and whose metadata is read: its logs and its engine."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from broker.engine.engine import Engine
from broker.log.log_manager import LogManager
from broker.net.jobs_at_once import run_at_once
from broker.net.server import BrokerServer
from broker.security.altered_tls import AlteredTls
from broker.security.authorization.acl import USER
from broker.security.principal_rules import ANONYMOUS
from broker.services.context import BrokerServices
from broker.services.start import open_logs
from broker.waiting.purgatory import Purgatory
from broker.wire.errors import ApiError
from flakelog.console.own_place import OwnPlace
from flakelog.machine import file_limit, partition_files
from flakelog.server.bound_broker import BoundBroker
from flakelog.server.lifecycle import Lifecycle, Report, Stage, StartError
from flakelog.server.own_socket import CONSOLE
from flakelog.server.sasl_parts import sasl_listeners
from flakelog.settings import Settings
from idgen.settings import InvalidSetting

if TYPE_CHECKING:
    from broker.security.sasl.added_scram import AddedScram
    from flakelog.new_topic import NewTopic
    from flakelog.server.cluster_part import ClusterPart

MakeEngine = Callable[[BrokerServices], Engine]


class BrokerParts(NamedTuple):
    """A broker whose logs are open, and whose ports accept no connections yet."""

    network: BrokerServer
    engine: Engine
    addresses: dict[str, str]
    """Each port's address by its name: broker, broker.<listener>."""
    own_place: OwnPlace
    """Where the console reaches the broker."""
    cluster: "ClusterPart | None" = None

    def serve(self, topics: "Sequence[NewTopic]", added_scram: "Sequence[AddedScram]" = ()) -> None:
        """Create the topics unless they exist, and accept connections; StartError if one cannot be created.

        `added_scram` are credentials of users, which are added too.
        """
        services, now = self.engine.services, self.network.now()
        services.coordinators.load(now)
        if topics:
            from flakelog.new_topic import make

            try:
                for topic in topics:
                    make(services, topic, now)
            except (ApiError, InvalidSetting) as error:
                raise StartError(f"--topic {topic.name}: {error}") from error
        if self.cluster is not None:
            self.network.join(self.cluster.coordination, self.cluster.peers)
        if added_scram:
            from flakelog.server.added_scram import add_credentials

            try:
                add_credentials(services, added_scram, now)
            except ApiError as error:
                raise StartError(f"--add-scram: {error}") from error
        self.network.serve()


def plain_engine(services: BrokerServices) -> Engine:
    return Engine(services, time.perf_counter_ns)


def open_broker(
    bound: BoundBroker,
    settings: Settings,
    make_engine: MakeEngine,
    reactor: Any,
    report: Report,
    lifecycle: Lifecycle,
    tls: AlteredTls,
    cluster: "ClusterPart | None",
    machine_dir: Path,
) -> BrokerParts:
    """Open the logs. `machine_dir` is the data directory, or that of the first broker of this machine's."""
    network, addresses, config, storage, local = bound[:5]
    max_open_files = storage.descriptors.limit = config.max_open_files or partition_files(file_limit())
    logs = LogManager(storage, config, report, max_open_files)
    purgatory = Purgatory(network.now().ms, config.max_delayed_operations)
    services = BrokerServices(
        config,
        local,
        logs,
        purgatory,
        report,
        group_config=settings.group,
        tls=tls,
        sasl=sasl_listeners(settings, machine_dir, reactor, report, lifecycle),
        own_listener=CONSOLE if CONSOLE in local.broker.endpoints else None,
        own_user=(settings.server.console_principal or f"{USER}:{ANONYMOUS}").removeprefix(f"{USER}:"),
        **({} if cluster is None else cluster.fields_of_services()),
    )
    services.transaction_config = settings.transaction
    services.listener_limits = settings.listener_limits
    services.given = {**settings.shown, "log.dirs": storage.location}
    services.fixed_configs = (replace(settings.server, log_dirs=storage.location), settings.idgen)
    open_logs(services)
    logs.disk.check(network.now())
    engine = make_engine(services)
    lifecycle.take(Stage.LOGS, partial(services.close, run_at_once))
    network.use(engine)
    own_place = bound.own_place
    if cluster is not None and services.own_listener is not None:
        # Also without an authorizer here: another broker may have one already, and would take this broker's rights.
        own_place = own_place._replace(others=cluster.other_brokers(f"{USER}:{services.own_user}"))
    return BrokerParts(network, engine, addresses, own_place, cluster)
