"""Administration of a cluster as a class: each method is one of the operations that the command line uses."""

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Self

from broker.client.blocking import TIMEOUT_MS, Client
from broker.client.checked_arguments import check_number
from broker.client.config_admin import ConfigValue
from broker.client.core import TopicInfo
from broker.client.errors import BrokerError
from broker.client.group_admin import ListedGroup
from broker.client.group_protocol import Partition
from broker.client.offset_lookup import find_offsets
from broker.client.offset_spec import AtId, AtTime, Earliest, Latest
from broker.client.old_spellings import renamed
from broker.client.security.client_security import Security
from broker.security.authorization.acl import AclBinding, AclBindingFilter
from broker.wire.fetch import READ_COMMITTED, READ_UNCOMMITTED
from flakelog.operations import (
    acls,
    cluster,
    configs,
    elections,
    group_reset,
    groups,
    partitions,
    quotas,
    topics,
    transactions,
    users,
)
from flakelog.operations.cluster import Cluster, LogDir
from flakelog.operations.configs import broker_resource, topic_resource
from flakelog.operations.elections import ElectionKind
from flakelog.operations.groups import Group
from flakelog.operations.partitions import Replicas
from flakelog.operations.placement import Placement, find_placement
from flakelog.operations.quotas import Quota
from flakelog.operations.topics import BROKER_DEFAULT
from flakelog.operations.transactions import ActiveProducer, ListedTransaction, Transaction
from flakelog.operations.users import ScramCredentials, ScramDeletion, ScramUpsertion

_ALL_ACLS = AclBindingFilter()


class Admin:
    """Administration of any cluster of Kafka's protocol: what `flakelog topic`, `group`, `config` and others do.

        with Admin("127.0.0.1:9092") as admin:
            admin.create_topic("orders", 4, {"retention.ms": "86400000"})

    A partition is a pair (topic, number). `timeout_ms` limits the wait for each answer. `security` has properties of
    Kafka's clients, such as `security.protocol`. Methods raise BrokerError with the broker's reason, and other
    ClientErrors; ValueError for an argument that cannot be sent.
    """

    @renamed(by_position=True, timeout="timeout_ms=, in milliseconds")
    def __init__(self, servers: str, *, timeout_ms: int = TIMEOUT_MS, security: Security = None) -> None:
        self._client = Client(servers, timeout_ms=timeout_ms, security=security)
        self._core = self._client.core

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    # --- topics

    def topics(self) -> list[TopicInfo]:
        """Return all topics, those of the broker itself included."""
        return self._client.topics()

    def topic(self, name: str) -> TopicInfo:
        """Return a topic."""
        return self._client.topic(name)

    def create_topic(
        self,
        name: str,
        partitions: int = BROKER_DEFAULT,
        configs: Mapping[str, str] | None = None,
        *,
        replication_factor: int = BROKER_DEFAULT,
    ) -> None:
        """Create a topic, by default with the broker's `num.partitions` and `default.replication.factor`.

        Brokers before Kafka 2.4 cannot choose either of the two, and refuse it (KIP-464).
        """
        topics.create_topic(self._client, name, partitions, configs, replication_factor=replication_factor)

    def delete_topic(self, name: str) -> None:
        """Delete a topic and all its records."""
        topics.delete_topic(self._client, name)

    def add_partitions(self, topic: str, to: int) -> None:
        """Increase a topic's number of partitions to `to`. Keys may map to other partitions afterwards."""
        topics.add_partitions(self._client, topic, to)

    def delete_records(self, before: Mapping[Partition, int]) -> dict[Partition, int]:
        """Delete the records below these offsets; return the first offset that each log has now.

        The offset -1 stands for the end of the committed records, as in Kafka.
        """
        return topics.delete_records(self._client, before)

    # --- settings

    def topic_configs(self, topic: str, names: Iterable[str] = ()) -> list[ConfigValue]:
        """Return a topic's settings in effect: those with these names, or all."""
        return configs.describe_configs(self._client, topic_resource(topic), names)

    def alter_topic_configs(self, topic: str, values: Mapping[str, str | None]) -> None:
        """Change settings of a topic at once; None restores a default. If one is refused, none is changed."""
        configs.alter_configs(self._client, topic_resource(topic), values)

    def broker_configs(self, broker: int | None = None, names: Iterable[str] = ()) -> list[ConfigValue]:
        """Return the settings of a broker by its node id, or those altered for all brokers."""
        return configs.describe_configs(self._client, broker_resource(broker), names)

    def alter_broker_configs(self, values: Mapping[str, str | None], broker: int | None = None) -> None:
        """Change settings of a broker, or of all brokers; None restores a default."""
        configs.alter_configs(self._client, broker_resource(broker), values)

    # --- offsets

    def first_offsets(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the first offset that each partition's log has."""
        return self._client.run(find_offsets(self._core, partitions, Earliest()))

    def end_offsets(self, partitions: Iterable[Partition], committed: bool = False) -> dict[Partition, int]:
        """Return the offset of each partition's next record; with `committed`, the end of its committed records."""
        level = READ_COMMITTED if committed else READ_UNCOMMITTED
        return self._client.run(find_offsets(self._core, partitions, Latest(), isolation_level=level))

    def offsets_at(self, time_ms: int, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return each partition's first offset at or after a time, Unix ms; the log's end if all are older."""
        at = AtTime(check_number("time_ms", time_ms))
        return self._client.run(find_offsets(self._core, partitions, at))

    def offsets_of_id(self, id: int, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return each partition's first offset whose id is at least `id`; the log's end if all are below.

        Raise Unsupported if the broker keeps no ids.
        """
        return self._client.run(find_offsets(self._core, partitions, AtId(check_number("id", id))))

    # --- groups

    def groups(self) -> list[ListedGroup]:
        """Return the consumer groups of all brokers."""
        return groups.list_groups(self._client)

    def group(self, name: str) -> Group:
        """Return a group and its members. The state of an unknown group is "Dead"."""
        return groups.describe_group(self._client, name)

    def committed(self, group: str) -> dict[Partition, int]:
        """Return what a group has committed."""
        return groups.committed(self._client, group)

    def lag(self, group: str) -> dict[Partition, int]:
        """Return the number of offsets between what a group has committed and the end of each partition.

        Partitions whose end no broker tells now are left out, such as those of a topic that was deleted.
        """
        return groups.lag(self._client, group)

    def reset_offsets(self, group: str, offsets: Mapping[Partition, int]) -> None:
        """Move a group without members, which need not exist, to these offsets.

        Raise NotPossible if the group has members, or if a log does not have its offset.
        """
        group_reset.carry_out(self._client, group_reset.plan_offsets(self._client, group, offsets))

    def delete_group(self, group: str) -> None:
        """Delete a group without members, and all that it has committed."""
        groups.delete_group(self._client, group)

    # --- brokers, partitions, quotas

    def cluster(self) -> Cluster:
        """Return the cluster's id, its controller and its brokers."""
        return cluster.describe_cluster(self._client)

    def placement(self) -> Placement:
        """Return the brokers, where the copies of each partition are, and which of them fail."""
        return find_placement(self._client)

    def elect_leaders(
        self, kind: ElectionKind, partitions: Iterable[Partition] | None = None
    ) -> dict[Partition, BrokerError | None]:
        """Elect leaders of these partitions, or of all that need it (KIP-460); return None or the error for each.

        The kind "preferred" elects the first replica, if it is in sync. The kind "unclean" is for partitions without a
        leader: a live replica leads that is not in sync, and the acknowledged records that it lacks are lost.
        """
        if partitions is None:
            partitions = elections.partitions_to_elect(self._client, kind)
        return elections.elect_leaders(self._client, kind, partitions)

    def log_dirs(self) -> list[LogDir]:
        """Return the data directories of all brokers, with the bytes of each partition."""
        return cluster.log_dirs(self._client)

    def replicas(self, *topics: str) -> dict[Partition, Replicas]:
        """Return leader and replicas of all partitions of these topics, or of all topics."""
        return partitions.replicas(self._client, topics)

    def quotas(self, entity: Mapping[str, str | None] | None = None, strict: bool = False) -> list[Quota]:
        """Return the quotas that name this entity, or all: {"client-id": "etl"}; the name None is the default.

        With `strict`, entities that have other parts too are left out.
        """
        return quotas.list_quotas(self._client, tuple((entity or {}).items()), strict=strict)

    def alter_quotas(self, entity: Mapping[str, str | None], values: Mapping[str, float | None]) -> None:
        """Change quotas of an entity: {"producer_byte_rate": 1e6}; None removes one."""
        quotas.alter_quotas(self._client, tuple(entity.items()), values)

    # --- access rules, users

    def describe_acls(self, selected: AclBindingFilter = _ALL_ACLS) -> list[AclBinding]:
        """Return the access rules that a filter selects, or all, ordered by their resources.

        A filter leaves open what it does not name. Its pattern type MATCH selects all rules that hold for the resource
        of its name. Raise BrokerError with SECURITY_DISABLED if the cluster has no `authorizer.class.name`.
        """
        return acls.list_acls(self._client, selected)

    def create_acls(self, bindings: Iterable[AclBinding]) -> None:
        """Add access rules (KIP-140). Adding a rule that exists is no error.

        Raise BrokerError for the first one that is refused; the others are added.
        """
        acls.add_acls(self._client, bindings)

    def delete_acls(self, filters: Iterable[AclBindingFilter]) -> list[AclBinding]:
        """Delete the access rules that any of these filters selects, and return them.

        Raise BrokerError for the first filter that is refused; the rules of the others are deleted.
        """
        return acls.remove_acls(self._client, filters)

    def describe_user_scram_credentials(self, *names: str) -> list[ScramCredentials]:
        """Return the mechanisms of these users, or of all, with their iterations (KIP-554); no broker tells secrets.

        A user without a credential has no mechanisms.
        """
        return users.list_users(self._client, names)

    def alter_user_scram_credentials(
        self, upsertions: Iterable[ScramUpsertion] = (), deletions: Iterable[ScramDeletion] = ()
    ) -> None:
        """Set passwords of users for SCRAM, and delete some (KIP-554). A call may name each user once.

        Passwords are salted and hashed before they are sent. Raise BrokerError for the first user that is refused; the
        others are altered.
        """
        users.alter_users(self._client, upsertions, deletions)

    # --- transactions

    def transactions(self, *states: str) -> list[ListedTransaction]:
        """Return the transactional ids that are in one of these states, such as "Ongoing", or all."""
        return transactions.list_transactions(self._client, states)

    def transaction(self, transactional_id: str) -> Transaction:
        """Return the state of a transactional id, and the partitions of its open transaction."""
        return transactions.describe_transaction(self._client, transactional_id)

    def producers(self, topic: str, partition: int) -> list[ActiveProducer]:
        """Return the producers that a partition remembers, and where their open transactions begin."""
        return transactions.describe_producers(self._client, topic, partition)

    def abort_transaction(self, topic: str, partition: int, producer: ActiveProducer) -> None:
        """Abort a hanging transaction in one partition, without its coordinator; `producers` finds it."""
        transactions.abort_transaction(self._client, topic, partition, producer)
