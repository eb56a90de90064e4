"""The change of `--decode` from the earlier loads of a place to the next one.

A load may bring new nullable fields at the top level of the record: older rows read as null there. It may also name the
schemas of more ids of a registry. All other changes of a field, and of how values become columns, are refused, because
readers see the rows of all loads together. Names, defaults, aliases and the order of fields are not columns, and may
change.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from spark_bridge.load.avro_schema import Kind, avro_name, parse
from spark_bridge.load.decoding import Decoding


def refused_change(before: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> str | None:
    """Return in one line why `now` cannot follow `before`, None if it can. Both are descriptions of `--decode`.

    Raise SchemaError if one of them is no such description.
    """
    if before == now:
        return None
    if before is None or now is None:
        return f"the earlier loads were made {'without' if before is None else 'with'} --decode"
    return next(_refusals(Decoding.from_dict(before), Decoding.from_dict(now)), None)


def _refusals(before: Decoding, now: Decoding) -> Iterator[str]:
    if before.format != now.format:
        yield f"the earlier loads were made with --decode {before.format}"
    if before.columns != now.columns:
        yield f"the earlier loads were made with --columns {','.join(before.columns)}"
    yield from _registry_refusals(before.writers, now.writers)
    yield from _record_refusals(parse(before.schema), parse(now.schema))


def _registry_refusals(before: Mapping[int, str] | None, now: Mapping[int, str] | None) -> Iterator[str]:
    if (before is None) != (now is None):
        given = "no ID=FILE" if before is None else "ID=FILE for each id of the schema registry"
        yield f"the earlier loads were made with {given}"
        return
    for id, schema in sorted((before or {}).items()):
        if id not in (now or {}):
            yield f"the earlier loads have the schema of id {id}: give it by --schema {id}=FILE"


def _record_refusals(before: Kind, now: Kind) -> Iterator[str]:
    yield from _kind_refusals("", before, now)
    spelled = {name.lower(): name for name, _ in before.children}
    for name, kind in now.children:
        other = spelled.setdefault(name.lower(), name)
        if other != name:
            yield f"field {name} differs from field {other} in case only, so readers could not tell them apart"
        elif name not in dict(before.children) and not kind.nullable:
            yield f'field {name} is new, so it must be nullable: {{"type": ["null", ...]}}'


def _kind_refusals(path: str, before: Kind, now: Kind) -> Iterator[str]:
    """Yield the changes of a type that are refused; new fields of the record itself are none of them."""
    if path and avro_name(before) != avro_name(now):
        yield f"field {path} has the type {avro_name(now)}, and had {avro_name(before)}"
        return
    if before.nullable and not now.nullable:
        yield f"field {path} must have a value, and could be null"
    if now.nullable and not before.nullable:
        yield f"field {path} may be null, and had to have a value"
    if before.symbols != now.symbols:
        yield f"field {path} has the symbols {', '.join(now.symbols)}, and had {', '.join(before.symbols)}"
    children, earlier = dict(now.children), dict(before.children)
    for name, child in before.children:
        inner = _path(path, name, before)
        if name in children:
            yield from _kind_refusals(inner, child, children[name])
        else:
            yield f"field {inner} is missing, and the earlier loads have it"
    for name in children if path else ():
        if name not in earlier:
            yield f"field {_path(path, name, now)} is new, and new fields are taken at the top level only"


def _path(path: str, name: str, kind: Kind) -> str:
    """Return the path of a child as SchemaError names it: address.zip, tags[], counts{}."""
    ending = {"array": "[]", "map": "{}"}.get(avro_name(kind))
    return f"{path}{ending}" if ending else f"{path}.{name}" if path else name
