"""A raw connection to a listener that asks who its clients are."""

from broker.wire import cold
from broker.wire.frame import LENGTH_BYTES
from broker.wire.primitives import skip_tags
from tests.broker.scram_client import ScramClient
from tests.compat.raw_connection import RawConnection, frame

SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36


class SaslConnection(RawConnection):
    """A connection that asks one request after the other."""

    def ask(self, api_key, version, fields, flexible=False):
        body = cold.encode(api_key, version, "request", fields)
        self.socket.sendall(frame(api_key, version, 1, body, flexible=flexible))
        _, body = self.read_frame()
        return cold.decode(api_key, version, "response", body, skip_tags(body, 0) if flexible else 0, version).original

    def shake_hands(self, mechanism, version=1):
        return self.ask(SASL_HANDSHAKE, version, {"mechanism": mechanism})

    def send_token(self, token):
        return self.ask(SASL_AUTHENTICATE, 2, {"auth_bytes": token}, flexible=True)

    def send_bare_token(self, token):
        self.socket.sendall(len(token).to_bytes(LENGTH_BYTES, "big") + token)
        return bytes(self.read_exactly(int.from_bytes(self.read_exactly(LENGTH_BYTES), "big")))

    def log_in(self, user, password, mechanism="PLAIN"):
        """Return the answer to the last token."""
        self.shake_hands(mechanism)
        if mechanism == "PLAIN":
            return self.send_token(f"\0{user}\0{password}".encode())
        scram = ScramClient(user, password, mechanism)
        return self.send_token(scram.final(self.send_token(scram.first).auth_bytes))
