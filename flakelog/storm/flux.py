"""Flux YAML of a topology: the file from which Storm builds it. https://storm.apache.org/releases/2.8.3/flux.html.

Each component is a process that Storm's workers start, as `python -m spout.multilang MODULE:TOPOLOGY COMPONENT`. The
file names no path of code, so that every worker finds the module where its Python looks. Storm's configuration in it
is made of Flakelog's settings.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from idgen.settings import from_properties, parse_setting, settings_of
from spout.api import Bolt
from spout.config import TopologyConfig
from spout.multilang.handshake import CLIENT
from spout.multilang.streams import check_for_storm, storm_grouping, storm_streams, storm_tick_seconds
from spout.topology import Node, Plan, StreamSubscription, TopologyError

SHELL_SPOUT = "org.apache.storm.flux.wrappers.spouts.FluxShellSpout"
SHELL_BOLT = "org.apache.storm.flux.wrappers.bolts.FluxShellBolt"
JAVA_FIELDS = "org.apache.storm.tuple.Fields"

PEX = "environment.pex"  # the name of a packed environment in a worker's directory

# Storm refuses these in a topology's name, because it names nodes in ZooKeeper and directories.
_NOT_IN_NAMES = re.compile(r"[/.:\\]")
# YAML 1.1 has more numbers than PyYAML knows (1e3), so a text is written without quotes only if it begins as a word.
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")


@dataclass(frozen=True)
class Launch:
    """How a worker starts the process of a component.

    `name` is MODULE:TOPOLOGY. `environment` is the key of a PEX file in Storm's blobstore, or "" for a Python that has
    the code installed. `variables` are set in the process's environment.
    """

    name: str
    python: str = "python3"
    environment: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)

    def command(self, component: str) -> list[str]:
        """Return the command line of a component's process."""
        packed = [PEX] if self.environment else []
        return [self.python, *packed, "-m", "spout.multilang", self.name, component]


def storm_config(texts: Mapping[str, str], workers: int, security: Mapping[str, str]) -> dict[str, Any]:
    """Return the configuration for given settings, which are texts by name, and for the properties of clients.

    Storm has no limit on tuples in flight, so ours is always in it, and the message timeout with it. The processes of
    the components get the configuration at their start: they find the settings of spouts and sinks there.
    """
    ours = from_properties(TopologyConfig, texts)
    config: dict[str, Any] = {
        "topology.workers": workers,
        "topology.max.spout.pending": ours.topology_max_spout_pending,
        "topology.message.timeout.secs": ours.topology_message_timeout_secs,
    }
    settings = {setting.name: setting for setting in settings_of(TopologyConfig)}
    for name, text in texts.items():
        config[name] = parse_setting(settings[name], text) if name in settings else text
    return config | {CLIENT + name: text for name, text in security.items()}


def flux_document(plan: Plan, launch: Launch, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document of a topology in Flux's form: dicts, lists, texts and numbers.

    `config` is Storm's configuration of the topology. Raise TopologyError, naming the component, for what cannot run
    inside Storm.
    """
    if _NOT_IN_NAMES.search(plan.name):
        raise TopologyError(f"topology {plan.name!r}: Storm allows none of / . : \\ in a topology's name")
    check_for_storm(plan)
    config = dict(config)
    if launch.environment:
        config["topology.blobstore.map"] = {launch.environment: {"localname": PEX, "uncompress": False}}
    document: dict[str, Any] = {"name": plan.name, "config": config}
    components = list(_grouped_fields(plan))
    if components:
        document["components"] = components
    document["spouts"] = [_component(node, SHELL_SPOUT, launch) for node in plan.spouts]
    document["bolts"] = [_component(node, SHELL_BOLT, launch) for node in plan.bolts]
    document["streams"] = [_stream(bolt, bolt_input) for bolt in plan.bolts for bolt_input in bolt.inputs]
    return document


def flux_yaml(document: Mapping[str, Any]) -> str:
    """Return the document as YAML 1.1, which SnakeYAML reads to the same values. Needs PyYAML."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        style = None if _WORD.fullmatch(value) else '"'
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    made: str = yaml.dump(
        document, Dumper=Dumper, sort_keys=False, allow_unicode=True, default_flow_style=None, width=120
    )
    return made


def _component(node: Node[Any], class_name: str, launch: Launch) -> dict[str, Any]:
    # The directory of a worker, where Storm puts the packed environment, stays the working directory.
    methods = [_call("changeChildCWD", False)]
    if launch.variables:
        methods.append(_call("setEnv", dict(launch.variables)))
    for name, stream in storm_streams(node).items():
        methods.append(_call("setNamedStream", name, list(stream.fields)))
    made = node.make()
    seconds = storm_tick_seconds(made) if isinstance(made, Bolt) else None
    if seconds is not None:
        methods.append(_call("addComponentConfig", "topology.tick.tuple.freq.secs", seconds))
    return {
        "id": node.name,
        "className": class_name,
        "parallelism": node.parallelism,
        "constructorArgs": [launch.command(node.name)],
        "configMethods": methods,
    }


def _call(method: str, *arguments: Any) -> dict[str, Any]:
    return {"name": method, "args": list(arguments)}


def _stream(bolt: Node[Bolt], subscription: StreamSubscription) -> dict[str, Any]:
    source, stream, _ = subscription
    grouping = storm_grouping(subscription.grouping)
    described: dict[str, Any] = {"type": grouping.type, "streamId": stream}
    if grouping.class_name:
        fields = {"ref": _fields_id(bolt, subscription)}
        described["customClass"] = {"className": grouping.class_name, "constructorArgs": [fields]}
    elif grouping.fields:
        described["args"] = list(grouping.fields)
    return {"from": source, "to": bolt.name, "grouping": described}


def _grouped_fields(plan: Plan) -> Iterator[dict[str, Any]]:
    """Yield the objects that groupings by a Java class refer to: Flux makes objects only as named components."""
    for bolt in plan.bolts:
        for bolt_input in bolt.inputs:
            grouping = storm_grouping(bolt_input.grouping)
            if grouping.class_name:
                yield {
                    "id": _fields_id(bolt, bolt_input),
                    "className": JAVA_FIELDS,
                    "constructorArgs": [list(grouping.fields)],
                }


def _fields_id(bolt: Node[Bolt], subscription: StreamSubscription) -> str:
    return f"fields of {bolt.name} from {subscription.component} {subscription.stream}"
