"""TLS without sockets, and the words for what goes wrong in a handshake."""

import ssl

import pytest

from broker.client.address import Address
from broker.client.errors import NotAuthenticated, Unreachable
from broker.client.security.client_security import ClientSecurity
from broker.client.security.tls_failures import handshake_failure, tls_failure
from broker.client.security.tls_stream import TlsStream
from flakelog.testing.authority import Authority

ADDRESS = Address("localhost", 9092)
AUTHORITY = Authority()


class TlsServer:
    """The other end of a stream."""

    def __init__(self, directory, issued, **fields):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(issued.write_pem(directory / "server.pem"))
        for name, value in fields.items():
            setattr(context, name, value)
        if context.verify_mode != ssl.CERT_NONE:
            context.load_verify_locations(cadata=AUTHORITY.pem())
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_side=True)

    def exchange(self, data):
        """Take bytes; return those for the client."""
        self.incoming.write(data)
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            pass
        return self.outgoing.read()


def security(**more):
    properties = {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": AUTHORITY.pem(),
    }
    return ClientSecurity.of(properties | {name.replace("_", "."): value for name, value in more.items()})


def connect(server, made=None, pieces=1 << 20):
    """Let a client shake hands with a server, whose bytes come in pieces."""
    stream = TlsStream((made or security()).context(), "localhost")
    while not stream.is_secured:
        answer = server.exchange(stream.take_outgoing())
        assert answer
        for at in range(0, len(answer), pieces):
            stream.receive(answer[at : at + pieces])
    assert stream.receive(server.exchange(stream.take_outgoing())) == b""
    return stream


def failure(server, made=None):
    with pytest.raises(OSError) as error:
        connect(server, made)
    return tls_failure(ADDRESS, error.value)


@pytest.mark.parametrize("pieces", [1, 1_000, 1 << 20])
def test_bytes_arrive_whole_however_they_are_cut(tmp_path, pieces):
    server = TlsServer(tmp_path, AUTHORITY.issue("broker"))
    stream = connect(server, pieces=pieces)
    stream.send(b"x" * 100_000)
    server.incoming.write(stream.take_outgoing())
    assert b"".join(server.tls.read(1 << 14) for _ in range(7)) == b"x" * 100_000
    server.tls.write(b"y" * 50_000)
    data = server.outgoing.read()
    parts = (stream.receive(data[at : at + pieces]) for at in range(0, len(data), pieces))
    assert b"".join(parts) == b"y" * 50_000
    with pytest.raises(ssl.SSLWantReadError):
        server.tls.unwrap()
    assert stream.receive(server.outgoing.read()) == b"" and stream.has_ended


@pytest.mark.parametrize(
    ("issued", "reason"),
    [
        (AUTHORITY.issue("broker", hosts=("elsewhere",)), "its certificate is not for the name localhost"),
        (AUTHORITY.issue("broker", ends_days=-0.5), "its certificate has expired"),
        (AUTHORITY.issue("broker", begins_days=1), "its certificate is not valid yet"),
        (Authority().issue("broker"), "its certificate is of an authority that this client does not know"),
    ],
)
def test_a_certificate_that_proves_nothing_is_refused(tmp_path, issued, reason):
    error = failure(TlsServer(tmp_path, issued))
    assert isinstance(error, NotAuthenticated)
    assert str(error).startswith(f"localhost:9092: {reason}")


def test_a_name_is_not_checked_where_that_is_turned_off(tmp_path):
    server = TlsServer(tmp_path, AUTHORITY.issue("broker", hosts=("elsewhere",)))
    assert connect(server, security(ssl_endpoint_identification_algorithm="")).is_secured


def test_a_server_that_wants_a_certificate_gets_it_or_is_named(tmp_path):
    own = AUTHORITY.issue("ada")
    key = {"ssl_keystore_type": "PEM", "ssl_keystore_certificate_chain": own.chain_pem()}
    made = security(**key, ssl_keystore_key=own.key_pem("secret"), ssl_key_password="secret")
    asking = {"verify_mode": ssl.CERT_REQUIRED}
    assert connect(TlsServer(tmp_path, AUTHORITY.issue("broker"), **asking), made).is_secured
    error = alert_of(TlsServer(tmp_path, AUTHORITY.issue("broker"), **asking), security())
    assert "it asks for a certificate of this client" in str(error)


def alert_of(server, made):
    """Return the error of a client that a server refuses, in its handshake or after it."""
    stream = TlsStream(made.context(), "localhost")
    with pytest.raises(ssl.SSLError):
        while True:
            stream.receive(server.exchange(stream.take_outgoing()))
    with pytest.raises(ssl.SSLError) as error:
        stream.receive(server.outgoing.read())
    return tls_failure(ADDRESS, error.value)


def test_versions_that_do_not_meet_are_named(tmp_path):
    server = TlsServer(tmp_path, AUTHORITY.issue("broker"), maximum_version=ssl.TLSVersion.TLSv1_2)
    error = alert_of(server, security(ssl_enabled_protocols="TLSv1.3"))
    assert "it has none of these versions of TLS" in str(error)


@pytest.mark.parametrize("answer", [b"\0\0\0\x0a" + b"\0" * 10, b"HTTP/1.1 400 Bad Request\r\n"])
def test_a_port_that_speaks_no_tls_is_named(answer):
    stream = TlsStream(security().context(), "localhost")
    with pytest.raises(ssl.SSLError) as error:
        stream.receive(answer)
    assert str(tls_failure(ADDRESS, error.value)).startswith("localhost:9092: it does not speak TLS: set security.pro")


def test_a_connection_that_ends_in_the_handshake_may_be_tried_again():
    error = handshake_failure(ADDRESS, ssl.SSLEOFError())
    assert isinstance(error, Unreachable) and "if it does not speak TLS, set security.protocol=PLAINTEXT" in str(error)
