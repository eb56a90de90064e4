"""Casts of arrays whose records may be null, although fields of the record must have a value.

pyarrow neither casts such a record nor writes it to Parquet, because its field has a null then. So the fields of a null
record get some value here, which no reader sees.
"""

import pyarrow as pa


def cast(array: pa.Array, to: pa.DataType) -> pa.Array:
    """Return an array with another type. Raise ArrowInvalid for a value that the type does not have.

    A field of a record that must have a value has one afterwards: the caller has checked those of records that are
    there.
    """
    if pa.types.is_struct(to):
        fields = [_filled(cast(array.field(at), field.type), field) for at, field in enumerate(to)]
        return pa.StructArray.from_arrays(fields, fields=list(to), mask=array.is_null())
    if pa.types.is_list(to):
        return _with_children(array, to, [cast(array.values, to.value_type)])
    if pa.types.is_map(to):
        columns = [array.keys, cast(array.items, to.item_type)]
        return _with_children(array, to, [pa.StructArray.from_arrays(columns, fields=[to.key_field, to.item_field])])
    return array if array.type == to else array.cast(to)


def _with_children(array: pa.Array, to: pa.DataType, children: list[pa.Array]) -> pa.Array:
    buffers = array.buffers()[:2]  # which elements are there, and where each list begins
    return pa.Array.from_buffers(to, len(array), buffers, array.null_count, array.offset, children)


def _filled(array: pa.Array, field: pa.Field) -> pa.Array:
    """Return an array without nulls if the field has none; a null of a fixed width becomes what its bytes say."""
    if field.nullable or not array.null_count:
        return array
    if pa.types.is_struct(array.type):
        fields = [_filled(array.field(at), child) for at, child in enumerate(array.type)]
        return pa.StructArray.from_arrays(fields, fields=list(array.type))
    nested = pa.types.is_list(array.type) or pa.types.is_map(array.type)
    children = [array.values if pa.types.is_list(array.type) else _entries(array)] if nested else None
    buffers = array.buffers()[1:2] if nested else array.buffers()[1:]
    return pa.Array.from_buffers(array.type, len(array), [None, *buffers], 0, array.offset, children)


def _entries(array: pa.Array) -> pa.Array:
    fields = [array.type.key_field, array.type.item_field]
    return pa.StructArray.from_arrays([array.keys, array.items], fields=fields)
