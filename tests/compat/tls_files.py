"""An authority, a broker's certificate and a client's, as files, and a raw connection that speaks TLS."""

import ssl
from types import SimpleNamespace

from flakelog.testing.authority import Authority
from tests.compat.raw_connection import RawConnection


class TlsFiles:
    """The files of one authority below a directory. `settings` are those of a server with a plain listener too."""

    def __init__(self, directory, kind="ecdsa", authority="Throw-away authority"):
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.authority = Authority(authority)
        self.ca = self.authority.write_pem(directory / "ca.pem")
        self.broker = self.authority.issue("broker", kind=kind).write_pem(directory / "broker.pem")
        self.ada = self.authority.issue("ada").write_pem(directory / "ada.pem")

    def settings(self, **more):
        return {
            "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.broker,
        } | {name.replace("_", "."): value for name, value in more.items()}

    def trusting(self):
        """Return the settings of a server that trusts clients of this authority."""
        return self.settings(ssl_truststore_type="PEM", ssl_truststore_location=self.ca)

    def context(self, certificate=None, **fields):
        """Return a client's context that trusts this authority; `certificate` is the file of the client's own."""
        context = ssl.create_default_context(cafile=self.ca)
        if certificate is not None:
            context.load_cert_chain(certificate)
        for name, value in fields.items():
            setattr(context, name, value)
        return context


class TlsConnection(RawConnection):
    """A raw connection that speaks TLS."""

    def __init__(self, address, context, **options):
        super().__init__(address, **options)
        self.socket = context.wrap_socket(self.socket, server_hostname="localhost")

    @property
    def subject(self):
        """Return the name in the certificate of the broker."""
        return dict(part[0] for part in self.socket.getpeercert()["subject"])["commonName"]

    def read_to_end(self):
        try:
            return super().read_to_end()
        except ssl.SSLError as error:
            return SimpleNamespace(error=str(error))
