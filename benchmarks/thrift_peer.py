"""A peer for the id service: get_id and get_ids over Apache Thrift's own Twisted server, with a naive worker behind it.

`python -m benchmarks.thrift_peer` prints its port and serves until its standard input ends. The code below is what
Thrift's compiler would generate for these two methods, written by hand.
"""

import sys

from thrift.protocol.TBinaryProtocol import TBinaryProtocolFactory
from thrift.Thrift import TMessageType, TProcessor, TType
from thrift.transport.TTwisted import ThriftServerFactory
from twisted.internet import reactor, stdio
from twisted.internet.defer import succeed
from twisted.internet.protocol import Protocol

from benchmarks.naive import NaiveWorker


class IdProcessor(TProcessor):
    """service { i64 get_id(1: string useragent)  list<i64> get_ids(1: string useragent, 2: i32 count) }"""

    def __init__(self) -> None:
        self._worker = NaiveWorker()

    def process(self, iprot, oprot):  # type: ignore[no-untyped-def]
        name, _, seqid = iprot.readMessageBegin()
        count = 0
        iprot.readStructBegin()
        while True:
            _, kind, _ = iprot.readFieldBegin()
            if kind == TType.STOP:
                break
            if kind == TType.I32:
                count = iprot.readI32()
            else:
                iprot.skip(kind)
            iprot.readFieldEnd()
        iprot.readStructEnd()
        iprot.readMessageEnd()
        oprot.writeMessageBegin(name, TMessageType.REPLY, seqid)
        oprot.writeStructBegin(f"{name}_result")
        if name == "get_id":
            oprot.writeFieldBegin("success", TType.I64, 0)
            oprot.writeI64(self._worker.next_id())
        else:
            oprot.writeFieldBegin("success", TType.LIST, 0)
            oprot.writeListBegin(TType.I64, count)
            for _ in range(count):
                oprot.writeI64(self._worker.next_id())
            oprot.writeListEnd()
        oprot.writeFieldEnd()
        oprot.writeFieldStop()
        oprot.writeStructEnd()
        oprot.writeMessageEnd()
        oprot.trans.flush()
        return succeed(None)


class UntilInputEnds(Protocol):
    def connectionLost(self, reason: object = None) -> None:
        reactor.stop()  # type: ignore[attr-defined]


def main() -> None:
    factory = ThriftServerFactory(IdProcessor(), TBinaryProtocolFactory())
    port = reactor.listenTCP(0, factory, interface="127.0.0.1")  # type: ignore[attr-defined]
    stdio.StandardIO(UntilInputEnds())
    sys.stdout.write(f"{port.getHost().port}\n")
    sys.stdout.flush()
    reactor.run()  # type: ignore[attr-defined]


main()
