"""A commit log on Kafka's wire protocol in which every message carries a 64-bit, k-sorted Snowflake id.

    from flakelog import Client, Producer, Record, Snowflake, Topology, errors

`errors` names the errors. The submodules listed below are the command line and the server, not the API. A name is
loaded when it is first used (PEP 562), so `import flakelog` loads none of Twisted, kazoo, kio and pyspark.
"""

from importlib import import_module
from importlib.util import find_spec
from os.path import dirname, realpath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from broker.client.async_consumer import AsyncConsumer
    from broker.client.async_producer import AsyncProducer
    from broker.client.asyncio import AsyncClient
    from broker.client.blocking import Client
    from broker.client.connector.async_connector import AsyncConsumerConnector, AsyncMessageStream
    from broker.client.connector.connector_config import ConnectorConfig
    from broker.client.connector.consumer_connector import ConsumerConnector, MessageStream
    from broker.client.connector.topic_filter import TopicFilter
    from broker.client.connector.twisted_connector import TwistedConsumerConnector, TwistedMessageStream
    from broker.client.consumer import Consumer
    from broker.client.consumer_config import ConsumerConfig
    from broker.client.consumer_core import Gap
    from broker.client.log_record import Record
    from broker.client.offset_spec import AtId, AtOffset, AtTime, Earliest, Last, Latest
    from broker.client.producer import Producer
    from broker.client.producer_hook import MessageOutcome, ProducerHook, QueuedMessage
    from broker.client.producer_outcomes import Delivered
    from broker.client.prometheus import ClientMetrics
    from broker.client.records import PoisonBatch
    from broker.security.authorization.acl import AclBinding, AclBindingFilter
    from broker.security.authorization.acl import Operation as AclOperation
    from broker.security.authorization.acl import PatternType
    from broker.security.authorization.acl import Permission as AclPermissionType
    from broker.security.authorization.acl import ResourceType
    from broker.version import VERSION as __version__
    from coordination.access import Access as ZooKeeperAccess
    from flakelog import errors
    from flakelog.admin import Admin
    from flakelog.async_admin import AsyncAdmin
    from flakelog.id_clients.asyncio import AsyncIdClient
    from flakelog.id_clients.blocking import IdClient
    from flakelog.id_clients.twisted import TwistedIdClient
    from flakelog.operations.users import ScramCredentials, ScramDeletion, ScramUpsertion
    from idgen.layout import Layout
    from idgen.snowflake import Snowflake
    from spark_bridge.arrow_reader import read
    from spout.api import Bolt, Spout, Tuple, Unavailable
    from spout.bolts import BatchBolt
    from spout.config import SpoutConfig, TopologyConfig
    from spout.log_sink import LogSink
    from spout.log_spout import LogSpout
    from spout.once import OncePerMessage
    from spout.run import run, run_async, run_in_background
    from spout.scheme import (
        JsonScheme,
        KeyValueScheme,
        MetadataScheme,
        RawScheme,
        SchemeError,
        StringScheme,
        TopicScheme,
        decode_json,
        decode_text,
    )
    from spout.sink_config import SinkConfig
    from spout.topology import Topology

# module -> names; more names are renamed below. Loading one name loads nothing that only the others need.
_MODULES = {
    "flakelog.admin": ("Admin",),
    "flakelog.async_admin": ("AsyncAdmin",),
    "flakelog.id_clients.asyncio": ("AsyncIdClient",),
    "flakelog.id_clients.blocking": ("IdClient",),
    "flakelog.id_clients.twisted": ("TwistedIdClient",),
    "broker.client.async_consumer": ("AsyncConsumer",),
    "broker.client.async_producer": ("AsyncProducer",),
    "broker.client.asyncio": ("AsyncClient",),
    "broker.client.blocking": ("Client",),
    "broker.client.connector.async_connector": ("AsyncConsumerConnector", "AsyncMessageStream"),
    "broker.client.connector.connector_config": ("ConnectorConfig",),
    "broker.client.connector.consumer_connector": ("ConsumerConnector", "MessageStream"),
    "broker.client.connector.topic_filter": ("TopicFilter",),
    "broker.client.connector.twisted_connector": ("TwistedConsumerConnector", "TwistedMessageStream"),
    "broker.client.consumer": ("Consumer",),
    "broker.client.consumer_config": ("ConsumerConfig",),
    "broker.client.consumer_core": ("Gap",),
    "broker.client.log_record": ("Record",),
    "broker.client.offset_spec": ("AtId", "AtOffset", "AtTime", "Earliest", "Last", "Latest"),
    "broker.client.producer": ("Producer",),
    "broker.client.producer_hook": ("MessageOutcome", "ProducerHook", "QueuedMessage"),
    "broker.client.producer_outcomes": ("Delivered",),
    "broker.client.prometheus": ("ClientMetrics",),
    "broker.client.records": ("PoisonBatch",),
    "broker.security.authorization.acl": ("AclBinding", "AclBindingFilter", "PatternType", "ResourceType"),
    "flakelog.operations.users": ("ScramCredentials", "ScramDeletion", "ScramUpsertion"),
    "idgen.layout": ("Layout",),
    "idgen.snowflake": ("Snowflake",),
    "spark_bridge.arrow_reader": ("read",),
    "spout.api": ("Bolt", "Spout", "Tuple", "Unavailable"),
    "spout.bolts": ("BatchBolt",),
    "spout.config": ("SpoutConfig", "TopologyConfig"),
    "spout.log_sink": ("LogSink",),
    "spout.log_spout": ("LogSpout",),
    "spout.once": ("OncePerMessage",),
    "spout.run": ("run", "run_async", "run_in_background"),
    "spout.scheme": (
        "JsonScheme", "KeyValueScheme", "MetadataScheme", "RawScheme", "SchemeError", "StringScheme", "TopicScheme",
        "decode_json", "decode_text",
    ),  # fmt: skip
    "spout.sink_config": ("SinkConfig",),
    "spout.topology": ("Topology",),
}
_HOMES = {name: (module, name) for module, names in _MODULES.items() for name in names}
_HOMES["AclOperation"] = ("broker.security.authorization.acl", "Operation")
_HOMES["AclPermissionType"] = ("broker.security.authorization.acl", "Permission")
_HOMES["ZooKeeperAccess"] = ("coordination.access", "Access")
_HOMES["__version__"] = ("broker.version", "VERSION")

# Extras of setup.cfg that a name needs, by the package that the extra brings.
_EXTRAS = {"read": "pyarrow"}

__all__ = [
    "AclBinding",
    "AclBindingFilter",
    "AclOperation",
    "AclPermissionType",
    "Admin",
    "AsyncAdmin",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncConsumerConnector",
    "AsyncIdClient",
    "AsyncMessageStream",
    "AsyncProducer",
    "AtId",
    "AtOffset",
    "AtTime",
    "BatchBolt",
    "Bolt",
    "Client",
    "ClientMetrics",
    "ConnectorConfig",
    "Consumer",
    "ConsumerConfig",
    "ConsumerConnector",
    "Delivered",
    "Earliest",
    "Gap",
    "IdClient",
    "JsonScheme",
    "KeyValueScheme",
    "Last",
    "Latest",
    "Layout",
    "LogSink",
    "LogSpout",
    "MessageOutcome",
    "MessageStream",
    "MetadataScheme",
    "OncePerMessage",
    "PatternType",
    "PoisonBatch",
    "Producer",
    "ProducerHook",
    "QueuedMessage",
    "RawScheme",
    "Record",
    "ResourceType",
    "SchemeError",
    "ScramCredentials",
    "ScramDeletion",
    "ScramUpsertion",
    "SinkConfig",
    "Snowflake",
    "Spout",
    "SpoutConfig",
    "StringScheme",
    "TopicFilter",
    "TopicScheme",
    "Topology",
    "TopologyConfig",
    "Tuple",
    "TwistedConsumerConnector",
    "TwistedIdClient",
    "TwistedMessageStream",
    "Unavailable",
    "ZooKeeperAccess",
    "__version__",
    "decode_json",
    "decode_text",
    "errors",
    "read",
    "run",
    "run_async",
    "run_in_background",
]


def _check_packages() -> None:
    """Raise ImportError if a file or folder of another project hides one of our packages, such as a `broker.py`."""
    ours = dirname(dirname(realpath(__file__)))
    for package in ("broker", "coordination", "idgen", "partition_manager", "spark_bridge", "spout"):
        spec = find_spec(package)
        folders = [] if spec is None else list(spec.submodule_search_locations or [])
        if not any(dirname(realpath(folder)) == ours for folder in folders):
            location = "nothing" if spec is None else folders[0] if folders else spec.origin
            reason = f"`import {package}` finds {location}, not Flakelog's package `{package}` in {ours}"
            raise ImportError(f"{reason}: rename it, or start Python in another directory")


_check_packages()


def __getattr__(name: str) -> Any:
    if name == "errors":
        return import_module("flakelog.errors")
    if name not in _HOMES:
        raise AttributeError(f"flakelog has no {name!r}; it offers {', '.join(__all__)}")
    module, original = _HOMES[name]
    return getattr(import_module(module), original)


def __dir__() -> list[str]:
    """Return the public names, without those whose extra is not installed: `help` loads each name."""
    return [name for name in __all__ if name not in _EXTRAS or find_spec(_EXTRAS[name]) is not None]
