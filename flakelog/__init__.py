"""Flakelog's public face: the names a user imports, each loaded when it is first asked for (PEP 562)."""

from importlib import import_module
from typing import Any

# name -> where it lives; loading one loads nothing the others need.
_HOMES = {
    "Snowflake": "idgen.client",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"flakelog has no {name!r}; it offers {', '.join(__all__)}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return __all__
