"""SHELL (files, imports by name): a topology from Python code, MODULE:TOPOLOGY, and settings given as texts."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from broker.client.security.client_security import Security
from idgen.settings import parse_setting, settings_of
from spout.api import Component
from spout.config import SpoutConfig
from spout.log_sink import LogSink
from spout.log_spout import LogSpout
from spout.sink_config import SinkConfig
from spout.topology import Plan, Topology

C = TypeVar("C", bound=Component)


class NoTopology(ValueError):
    """A name that leads to no topology; the message says what would be right."""


def find_topology(text: str) -> Topology:
    """Return the topology at MODULE:TOPOLOGY.

    MODULE is a module's name, looked for in the working directory first, or the path of a .py file. TOPOLOGY is a
    Topology or a function without arguments that returns one. Raise NoTopology; an exception of the module comes out.
    """
    source, colon, name = text.rpartition(":")
    if not colon or not source or not name:
        raise NoTopology(f"{text!r} names no topology; give MODULE:TOPOLOGY, as in words:topology or words.py:make")
    module = _module(source)
    value = vars(module).get(name)
    if value is None:
        raise NoTopology(f"{source} has no {name!r}{_hint(module, name)}")
    made = value() if callable(value) and not isinstance(value, Topology) else value
    if not isinstance(made, Topology):
        mistake = f"returns a {type(made).__name__}" if made is not value else f"is a {type(made).__name__}"
        raise NoTopology(f"{text} {mistake}, not a Topology{_hint(module, name)}")
    return made


def _module(source: str) -> ModuleType:
    if source.endswith(".py") or "/" in source:
        return _module_of_file(Path(source))
    sys.path.insert(0, str(Path.cwd()))
    try:
        exists = find_spec(source) is not None
    except ModuleNotFoundError:
        exists = False
    if not exists:
        raise NoTopology(f"there is no module {source!r} in {Path.cwd()} or where Python looks; a file is named by .py")
    return import_module(source)


def _module_of_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise NoTopology(f"there is no file {path}")
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None, "a .py file has a loader"
    sys.path.insert(0, str(path.resolve().parent))
    module = sys.modules[path.stem] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _hint(module: ModuleType, name: str) -> str:
    topologies = [attribute for attribute, value in vars(module).items() if isinstance(value, Topology)]
    functions = [
        attribute
        for attribute, value in vars(module).items()
        if callable(value) and getattr(value, "__module__", None) == module.__name__ and not isinstance(value, type)
    ]
    near = get_close_matches(name, [*topologies, *functions], 1)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; its topologies are: {', '.join(topologies) or 'none'}, its functions: {', '.join(functions) or 'none'}"


class ConfiguredTopology(Topology):
    """A topology whose LogSpouts and LogSinks take the given settings and security over those in the code."""

    def __init__(self, inner: Topology, texts: Mapping[str, str], security: Security = None) -> None:
        """Take settings as texts by name, of which other names than a spout's and a sink's are ignored.

        `security` is that of all of them, None for that in the code.
        """
        super().__init__(inner.name, id=inner.id)
        self._inner = inner
        self._security = security
        self._given: dict[type, dict[str, Any]] = {
            kind: {of.field: parse_setting(of, texts[of.name]) for of in settings_of(kind) if of.name in texts}
            for kind in (SpoutConfig, SinkConfig)
        }

    def plan(self) -> Plan:
        """Return the plan of the topology. Raise TopologyError, or InvalidSetting if settings do not fit together."""
        plan = self._inner.plan()
        if self._security is None and not any(self._given.values()):
            return plan
        spouts = tuple(replace(node, make=partial(self._make, node.make)) for node in plan.spouts)
        bolts = tuple(replace(node, make=partial(self._make, node.make)) for node in plan.bolts)
        return plan._replace(spouts=spouts, bolts=bolts)

    def _make(self, make: Callable[[], C]) -> C:
        made = make()
        config = getattr(made, "config", None)
        given = self._given.get(type(config))
        if given and isinstance(config, (SpoutConfig, SinkConfig)):
            vars(made)["config"] = replace(config, **given)
        if self._security is not None and isinstance(made, (LogSpout, LogSink)):
            vars(made)["security"] = self._security
        return made
