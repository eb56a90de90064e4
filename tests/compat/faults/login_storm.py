"""A program that attacks the logins of a server: python -m tests.compat.faults.login_storm KIND COUNT SEED PLAIN TLS

    PLAIN and TLS are the addresses of a listener of SASL_PLAINTEXT and one of SASL_SSL
    records    damaged records of TLS: in the handshake, and after it
    logins     damaged logins, also by bare tokens, in plain text and over TLS
    stopped    connections that stop in the middle of a login, and stay until the server closes them
    half-open  connections to the port of TLS that send nothing
    slow       handshakes of TLS whose bytes come one by one
    handshakes whole handshakes of TLS, one after the other from each of 32 connections at once

They come from many addresses. At its end it prints how many connections it made.
"""

import asyncio
import logging
import resource
import ssl
import sys
from contextlib import suppress
from random import Random

from tests.broker.engine.test_authenticator import LISTENER, broker
from tests.broker.engine.test_authenticator_fuzz import damaged, frames
from tests.broker.engine_client import SASL_HANDSHAKE

AT_ONCE = 32
MANY_AT_ONCE = 10_000
OPEN_SECONDS = 60.0
"""How long a connection waits for its end."""
ROUND_TRIP_SECONDS = 0.05
"""How long a damaged login waits for an answer, before it sends what comes next."""


class Storm:
    """The connections of one attack."""

    def __init__(self, seed, plain, tls):
        self._random = Random(seed)
        self._plain, self._tls = plain.rpartition(":"), tls.rpartition(":")
        self._context = ssl.create_default_context()
        self._context.check_hostname, self._context.verify_mode = False, ssl.CERT_NONE
        self._maker = broker().connect(listener=LISTENER)
        self.made = 0

    async def run(self, kind, count):
        work = {
            "records": self._damage_records,
            "logins": self._damage_login,
            "stopped": self._stop,
            "half-open": self._send_nothing,
            "slow": self._shake_slowly,
            "handshakes": self._shake_hands,
        }[kind]
        numbers = iter(range(count))

        async def repeat():
            for _ in numbers:
                with suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
                    await work()

        waits = kind in ("stopped", "half-open", "slow")
        await asyncio.gather(*(repeat() for _ in range(min(MANY_AT_ONCE if waits else AT_ONCE, count))))

    async def _open(self, address, context=None):
        source = f"127.{self._random.randrange(1, 200)}.{self._random.randrange(256)}.{self._random.randrange(1, 255)}"
        host, _, port = address
        name = "localhost" if context is not None else None
        self.made += 1
        return await asyncio.open_connection(host, int(port), local_addr=(source, 0), ssl=context, server_hostname=name)

    async def _end(self, reader, writer):
        """Wait until the server closes the connection."""
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(OPEN_SECONDS):
                while await reader.read(1 << 16):
                    pass
        writer.transport.abort()

    def _hello(self):
        """Return the stream of a client's TLS, and the bytes of its first message."""
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        stream = self._context.wrap_bio(incoming, outgoing, server_hostname="localhost")
        with suppress(ssl.SSLWantReadError):
            stream.do_handshake()
        return stream, incoming, outgoing

    async def _damage_records(self):
        reader, writer = await self._open(self._tls)
        try:
            stream, incoming, outgoing = self._hello()
            first = outgoing.read()
            if self._random.random() < 0.5:
                writer.write(damaged(first, self._random))
                await self._read_for_a_while(reader)
                return
            writer.write(first)
            while True:
                incoming.write(await reader.read(1 << 16) or b"\0")
                try:
                    stream.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    writer.write(outgoing.read())
            last = outgoing.read()
            stream.write(b"".join(frames(self._maker, self._random)))
            writer.write(damaged(last + outgoing.read(), self._random))
            await self._read_for_a_while(reader)
        except ssl.SSLError:
            pass
        finally:
            writer.transport.abort()

    async def _damage_login(self):
        is_tls = self._random.random() < 0.1
        reader, writer = await (self._open(self._tls, self._context) if is_tls else self._open(self._plain))
        try:
            stream = damaged(b"".join(frames(self._maker, self._random)), self._random)
            while stream:
                size = self._random.choice([7, 40, len(stream), len(stream)])
                writer.write(stream[:size])
                await writer.drain()
                stream = stream[size:]
            await self._read_for_a_while(reader)
        finally:
            writer.transport.abort()

    async def _read_for_a_while(self, reader):
        with suppress(TimeoutError):
            async with asyncio.timeout(ROUND_TRIP_SECONDS):
                await reader.read(1 << 16)

    async def _stop(self):
        reader, writer = await self._open(self._plain)
        handshake = self._maker.frame(SASL_HANDSHAKE, 1, {"mechanism": "SCRAM-SHA-256"})[1]
        whole = handshake + self._random.choice([b"", b"\0\0\1\0", b"\0\0\0\x20\0\x24\0\2"])
        writer.write(whole[: self._random.randrange(len(whole)) + 1])
        await self._end(reader, writer)

    async def _send_nothing(self):
        await self._end(*await self._open(self._tls))

    async def _shake_slowly(self):
        reader, writer = await self._open(self._tls)
        _, _, outgoing = self._hello()
        ending = asyncio.ensure_future(self._end(reader, writer))
        for byte in outgoing.read():
            if ending.done():
                break
            writer.write(bytes([byte]))
            await asyncio.wait([ending], timeout=0.1)
        await ending

    async def _shake_hands(self):
        _, writer = await self._open(self._tls, self._context)
        writer.transport.abort()


def main():
    kind, count, seed, plain, tls = sys.argv[1:]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    storm = Storm(int(seed), plain, tls)
    asyncio.run(storm.run(kind, int(count)))
    print(storm.made)


if __name__ == "__main__":
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns of writes to a connection that the server closed
    main()
