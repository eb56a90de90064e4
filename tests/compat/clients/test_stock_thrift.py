"""A stock Thrift client, made from idgen/flakelog.thrift by an unchanged thriftpy2, against a real id service."""

import re
import time
from pathlib import Path

import pytest

import idgen
from idgen.layout import Layout
from tests.compat.server_process import ServerProcess
from tests.compat.tls_files import TlsFiles
from tests.patience import MS

thriftpy2 = pytest.importorskip("thriftpy2", reason="no thriftpy2: the IDL file is not tried with a stock compiler")

IDL = Path(idgen.__file__).with_name("flakelog.thrift")
TWITTERS = ("get_worker_id", "get_timestamp", "get_id", "get_datacenter_id")
LAYOUT = Layout()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with ServerProcess(tmp_path_factory.mktemp("thrift") / "data", command="idgen") as running:
        yield running


def client_of(idl, server, **tls):
    from thriftpy2.protocol import TBinaryProtocolFactory
    from thriftpy2.rpc import client_context
    from thriftpy2.transport import TFramedTransportFactory

    host, _, port = server.ids.rpartition(":")
    framed, binary = TFramedTransportFactory(), TBinaryProtocolFactory()
    service = thriftpy2.load(str(idl), module_name=f"{idl.stem}_thrift").Snowflake
    waits = {"connect_timeout": MS, "socket_timeout": MS}
    return client_context(service, host, int(port), proto_factory=binary, trans_factory=framed, **waits, **tls)


def test_every_method_of_the_idl_is_answered_as_it_says(server):
    with client_of(IDL, server) as client:
        ids = [client.get_id("stock-client"), *client.get_ids("stock-client", 10_000), client.get_id("stock-client")]
        assert len(ids) == 10_002 and ids == sorted(set(ids))
        parts = client.decode_id(ids[0])
        ours = LAYOUT.unpack(ids[0])
        names = ("time_ms", "datacenter", "worker", "sequence", "worker_number")
        assert [getattr(parts, name) for name in names] == [getattr(ours, name) for name in names]
        assert (client.get_worker_id(), client.get_datacenter_id()) == (ours.worker, ours.datacenter)
        assert ours.time_ms <= client.get_timestamp() <= time.time_ns() // 1_000_000
        span = client.get_id_range(ours.time_ms, ours.time_ms + 1)
        assert span.first_id <= ids[0] < span.end_id == span.first_id + (1 << 22)


@pytest.mark.parametrize(
    "method, arguments, reason",
    [
        ("get_id", ("not_an_agent",), "InvalidUserAgent: user agent 'not_an_agent'"),
        ("get_id", (None,), "InvalidUserAgent: user agent None"),
        ("get_ids", ("agent", 0), "InvalidCount: 0 ids"),
        ("decode_id", (-1,), "InvalidId: -1 is no id"),
        ("get_id_range", (2, 1), "InvalidTimeRange: the range ends at 1"),
    ],
)
def test_an_error_is_an_application_exception_and_the_connection_lives_on(server, method, arguments, reason):
    from thriftpy2.thrift import TApplicationException

    with client_of(IDL, server) as client:
        with pytest.raises(TApplicationException) as refused:
            getattr(client, method)(*arguments)
        assert refused.value.type == TApplicationException.INTERNAL_ERROR
        assert refused.value.message.startswith(reason)
        assert client.get_id("agent") > 0


def test_a_client_that_knows_twitters_four_methods_only_needs_no_change(server, tmp_path):
    """A client with only the four methods of snowflake-2010 works, because our IDL keeps them with their arguments."""
    methods = re.findall(r"^  i64 (\w+)\((.*)\)$", IDL.read_text(), re.M)
    assert [name for name, _ in methods] == list(TWITTERS)
    old = tmp_path / "Snowflake.thrift"
    old.write_text("service Snowflake {\n" + "".join(f"  i64 {name}({given})\n" for name, given in methods) + "}\n")
    with client_of(old, server) as client:
        ids = [client.get_id("old-client") for _ in range(100)]
        assert ids == sorted(set(ids))
        assert LAYOUT.unpack(ids[0]).worker == client.get_worker_id()
        assert LAYOUT.unpack(ids[0]).datacenter == client.get_datacenter_id()
        assert client.get_timestamp() > LAYOUT.epoch_ms


# --- over TLS ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def secured(tmp_path_factory):
    """Yield a service that wants certificates of its clients, and the files of its authority."""
    files = TlsFiles(tmp_path_factory.mktemp("tls"))
    settings = {
        "flakelog.ids.ssl.enable": "true",
        "flakelog.ids.ssl.client.auth": "required",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": files.broker,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": files.ca,
    }
    with ServerProcess(tmp_path_factory.mktemp("thrift") / "data", settings, command="idgen") as running:
        yield running, files


def test_thriftpy2_asks_over_tls_with_a_certificate(secured):
    server, files = secured
    with client_of(IDL, server, ssl_context=files.context(files.ada)) as client:
        assert len({*client.get_ids("stock-client", 10_000), client.get_id("stock-client")}) == 10_001


@pytest.mark.parametrize("is_shown", [True, False])
def test_apache_thrift_asks_over_tls_and_is_refused_without_a_certificate(secured, is_shown):
    """Its TSSLSocket, with the calls as its compiler would write them."""
    from thrift.protocol.TBinaryProtocol import TBinaryProtocol
    from thrift.Thrift import TMessageType
    from thrift.transport.TSSLSocket import TSSLSocket
    from thrift.transport.TTransport import TFramedTransport, TTransportException

    server, files = secured
    host, _, port = server.ids.rpartition(":")
    own = {"certfile": str(files.ada), "keyfile": str(files.ada)} if is_shown else {}
    transport = TFramedTransport(TSSLSocket(host, int(port), ca_certs=str(files.ca), **own))
    protocol = TBinaryProtocol(transport)

    def worker_id():
        protocol.writeMessageBegin("get_worker_id", TMessageType.CALL, 7)
        protocol.writeFieldStop()
        protocol.writeMessageEnd()
        transport.flush()
        name, kind, seqid = protocol.readMessageBegin()
        assert (name, kind, seqid) == ("get_worker_id", TMessageType.REPLY, 7)
        protocol.readFieldBegin()
        return protocol.readI64()

    transport.open()
    if is_shown:
        assert 0 <= worker_id() < 32
    else:
        with pytest.raises((TTransportException, OSError)):
            worker_id()
    transport.close()
