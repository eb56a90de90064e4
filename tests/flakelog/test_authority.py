"""The throw-away authority of flakelog.testing."""

import ssl

import pytest

from broker.security.tls_endpoint import TlsEndpoint
from flakelog.testing.authority import ECDSA, RSA, Authority


@pytest.mark.parametrize("kind", (ECDSA, RSA))
def test_its_certificates_pass_a_check_by_the_letter_of_rfc_5280(tmp_path, kind):
    """Python checks so from 3.13 on."""
    authority = Authority()
    file = authority.issue("broker", kind=kind).write_pem(tmp_path / "broker.pem")
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(file)
    asking = ssl.create_default_context(cadata=authority.pem())
    asking.verify_flags |= ssl.VERIFY_X509_STRICT
    client, server = TlsEndpoint(asking, "localhost"), TlsEndpoint(serving)
    client.shake_hands()
    server.incoming.write(client.outgoing.read())
    server.shake_hands()
    client.incoming.write(server.outgoing.read())
    assert client.shake_hands()
