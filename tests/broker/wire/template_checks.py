"""Frames as the full decoder and as templates read them, in one form: (version, client id, correlation id, request)."""

from broker.wire.errors import WireError
from broker.wire.frame import read_request_header
from broker.wire.primitives import skip_tags


def decoded_by(codec, frame):
    """Return what the full decoder of a codec's module reads of a frame, None for a frame that it refuses."""
    try:
        header = read_request_header(frame)
        position = skip_tags(frame, header.body) if header.version >= codec.FLEXIBLE else header.body
        request = codec.decode_request(header.version, frame, position)
    except (WireError, IndexError):
        return None
    return header.version, header.client_id, header.correlation_id, request


def taught(templates, codec, frames):
    """Let templates learn frames that were decoded in full, and return them."""
    for frame in frames:
        templates.learn(frame, read_request_header(frame), decoded_by(codec, frame)[3])
    return templates


def opened(templates, frame):
    """Return what a template reads of a frame, None for a frame that has none."""
    reading = templates.open(frame)
    if reading is None:
        return None
    template, correlation_id, request, _ = reading
    return template.version, template.client_id, correlation_id, request
