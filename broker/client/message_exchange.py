"""Requests that are given as messages, objects of a schema class, whose class names the API and its version.

Brokers send such requests to each other, in one version of each API and without ApiVersions.
"""

from io import BytesIO
from typing import Any

from kio.serial import entity_writer

from broker.client.core import Address, Exchange
from broker.wire import cold


def exchange_of(address: Address, message: Any) -> Exchange:
    """Return the request for a node."""
    out = BytesIO()
    entity_writer(type(message))(out, message)
    return Exchange(address, int(message.__api_key__), int(message.__version__), message.__flexible__, out.getvalue())


def response_to(message: Any, body: memoryview) -> Any:
    """Return the response to a request, given the body of its answer. Raise WireError."""
    api_key, version = int(message.__api_key__), int(message.__version__)
    return cold.decode(api_key, version, "response", body, 0, version).original
