"""The principal in an Envelope: a version as i16, then DefaultPrincipalData (KIP-590)."""

import struct
from io import BytesIO

from kio.schema.default_principal_data.v0.data import DefaultPrincipalData
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import DecodeError

from broker.wire.errors import WireError
from broker.wire.primitives import Buffer

_VERSION = struct.Struct(">h")


def encode_principal(kind: str, name: str) -> bytes:
    """Return a principal such as User:ada as bytes."""
    out = BytesIO()
    entity_writer(DefaultPrincipalData)(out, DefaultPrincipalData(type_=kind, name=name, token_authenticated=False))
    return _VERSION.pack(0) + out.getvalue()


def decode_principal(data: Buffer) -> tuple[str, str]:
    """Return the kind and the name of a principal. Raise WireError."""
    view = memoryview(bytes(data))
    try:
        (version,) = _VERSION.unpack_from(view)
        principal, size = entity_reader(DefaultPrincipalData)(view, _VERSION.size)
    except (DecodeError, ValueError, KeyError, IndexError, struct.error) as error:
        raise WireError(f"no principal: {error}") from None
    if version != 0 or _VERSION.size + size != len(view):
        raise WireError(f"no principal of version 0: version {version}, {len(view)} bytes")
    return principal.type_, principal.name
