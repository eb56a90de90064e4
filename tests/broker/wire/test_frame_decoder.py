"""The frame decoder: bytes in, frames out, however they are cut, put aside or received, and for any length claimed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.wire import frame_decoder
from broker.wire.errors import WireError
from broker.wire.frame_decoder import FIRST_BYTES, LITTLE_BYTES, FrameDecoder

MAX_FRAME_BYTES = 100 << 20


def framed(*bodies):
    return b"".join(len(body).to_bytes(4, "big") + body for body in bodies)


def feed(decoder, data):
    """Feed data as the shell does, directly into the wanted memory if there is any; return the frames."""
    frames = []
    while data:
        into = decoder.wanted()
        taken = bytearray(data) if into is None else into[: len(data)]
        taken[:] = data[: len(taken)]
        if decoder.feed(memoryview(taken)):
            frames += take(decoder)
        data = data[len(taken) :]
    return frames


def take(decoder):
    """Take all whole frames, as the engine does."""
    frames = []
    while (frame := decoder.next_frame()) is not None:
        frames.append(bytes(frame))
        if not decoder.has_frame():
            return frames
    assert not decoder.has_frame()
    return frames


@given(st.lists(st.binary(max_size=300), max_size=5), st.lists(st.integers(1, 50), min_size=1))
def test_frames_come_out_whole_however_the_stream_is_cut(bodies, cuts):
    stream, decoder, frames, position = framed(*bodies), FrameDecoder(1 << 10), [], 0
    while position < len(stream):
        for cut in cuts:
            frames += feed(decoder, stream[position : position + cut])
            position += cut
    assert frames == bodies
    assert not decoder.in_frame


@pytest.mark.parametrize("size", [FIRST_BYTES - 1, FIRST_BYTES, FIRST_BYTES + 1, 5 * FIRST_BYTES + 3])
@pytest.mark.parametrize("piece", [100_000, FIRST_BYTES, 64 << 20])
def test_a_large_frame_is_gathered_in_pieces(size, piece):
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    stream, decoder, frames = framed(body, b"next"), FrameDecoder(MAX_FRAME_BYTES), []
    for position in range(0, len(stream), piece):
        frames += feed(decoder, stream[position : position + piece])
    assert frames == [body, b"next"]


def test_bytes_from_elsewhere_are_taken_into_a_frame_that_has_begun():
    """A shell need not use `wanted`: the rest of a frame may come together with the start of the next one."""
    body, decoder = bytes(3 * FIRST_BYTES), FrameDecoder(MAX_FRAME_BYTES)
    stream = framed(body, b"next")
    assert feed(decoder, stream[:10]) == []
    decoder.feed(memoryview(bytearray(stream[10:])))
    assert bytes(decoder.next_frame()) == body
    assert bytes(decoder.next_frame()) == b"next"


def test_a_length_takes_no_memory_before_its_bytes_have_come():
    """Four bytes of a stranger must not cost socket.request.max.bytes of memory (rule 4 of CONTRIBUTING.md)."""
    decoder = FrameDecoder(MAX_FRAME_BYTES)
    feed(decoder, MAX_FRAME_BYTES.to_bytes(4, "big"))
    assert len(decoder.wanted()) == LITTLE_BYTES
    feed(decoder, bytes(FIRST_BYTES))
    assert len(decoder.wanted()) == FIRST_BYTES, "at most as much again as has come"
    assert decoder.in_frame


def test_thousands_who_announce_a_frame_and_say_no_more_cost_little_each():
    """Eight bytes once took a megabyte, so five thousand peers kept a broker busy for ten seconds and took 5 GB."""
    decoder = FrameDecoder(MAX_FRAME_BYTES)
    feed(decoder, (1 << 20).to_bytes(4, "big") + b"\0\0\0\x0d")
    assert len(decoder.wanted()) == LITTLE_BYTES - 4
    feed(decoder, bytes(LITTLE_BYTES - 4))
    assert len(decoder.wanted()) == (1 << 20) - LITTLE_BYTES, "who goes on sending has room for a common frame"


def test_a_frame_past_the_limit_is_refused_at_its_length():
    decoder = FrameDecoder(1000)
    assert feed(decoder, framed(bytes(1000))) == [bytes(1000)]
    with pytest.raises(WireError, match="1001 bytes is announced, socket.request.max.bytes is 1000"):
        feed(decoder, (1001).to_bytes(4, "big"))


@pytest.mark.parametrize("data, name", [(b"\x16\x03\x01\x02", "TLS"), (b"GET ", "HTTP"), (b"SSH-", "SSH")])
def test_what_is_often_sent_by_mistake_is_named(data, name):
    with pytest.raises(WireError, match=name):
        feed(FrameDecoder(MAX_FRAME_BYTES), data)


# --- requests for another turn ---------------------------------------------------------------------------------------


def test_bytes_that_were_not_read_survive_a_pause_with_a_frame_put_back_before_them():
    decoder = FrameDecoder(1000)
    data = bytearray(framed(b"one", b"two", b"three")[:-2])
    decoder.feed(memoryview(data))
    held = bytearray(decoder.next_frame())
    decoder.pause()
    data[:] = bytes(len(data))  # the shell uses its buffer again
    assert decoder.has_frame()
    decoder.put_back(memoryview(held))
    assert take(decoder) == [b"one", b"two"]
    assert feed(decoder, b"ee") == [b"three"]


@pytest.mark.parametrize("begun", [b"", b"\0", b"\0\0\0", b"\0\0\0\x05", b"\0\0\0\x05thr"])
def test_a_frame_put_back_comes_before_the_frame_that_has_only_begun(begun):
    """The engine has already asked for more frames when it finds that a request must wait."""
    decoder, remainder = FrameDecoder(1000), framed(b"three")[len(begun) :]
    decoder.feed(memoryview(bytearray(framed(b"one", b"two") + begun)))
    assert take(decoder) == [b"one", b"two"]
    decoder.put_back(memoryview(bytearray(b"two")))
    assert decoder.has_frame()
    assert take(decoder) == [b"two"]
    assert feed(decoder, remainder) == [b"three"]


def test_a_frame_put_back_comes_before_what_is_fed_after_it():
    decoder = FrameDecoder(1000)
    assert feed(decoder, framed(b"one")) == [b"one"]
    decoder.put_back(memoryview(bytearray(b"one")))
    decoder.feed(memoryview(bytearray(framed(b"two"))))
    assert take(decoder) == [b"one", b"two"]


def test_there_is_a_frame_once_its_last_byte_has_come():
    decoder, stream = FrameDecoder(1000), framed(b"one", b"two")
    flags = []
    for position in range(len(stream)):
        decoder.feed(memoryview(bytearray(stream[position : position + 1])))
        flags.append(decoder.has_frame())
        if flags[-1]:
            assert decoder.next_frame() is not None and not decoder.has_frame()
    assert flags == [False] * 6 + [True] + [False] * 6 + [True]


def test_a_length_past_the_limit_counts_as_a_frame_because_there_is_something_to_say():
    decoder = FrameDecoder(1000)
    decoder.feed(memoryview(bytearray(framed(b"one") + b"\0\0\x03\xe9")))
    assert decoder.next_frame() == b"one" and decoder.has_frame()
    with pytest.raises(WireError, match="1001 bytes is announced"):
        decoder.next_frame()


def test_unread_bytes_are_those_of_the_frames_that_were_not_taken():
    decoder = FrameDecoder(1000)
    decoder.feed(memoryview(bytearray(framed(b"one", b"two", b"three")[:-2])))
    unread = [decoder.unread_bytes]
    for _ in range(2):
        decoder.next_frame()
        unread.append(decoder.unread_bytes)
    assert unread == [21, 14, 7]
    assert not decoder.has_frame() and decoder.unread_bytes == 0, "the beginning of a frame has its own buffer"


class Taker:
    """A decoder whose frames are taken a few at a time, while the bytes it was fed become invalid after each turn."""

    def __init__(self):
        self.decoder = FrameDecoder(1 << 20)
        self.frames = []
        self._fed = bytearray()

    def feed(self, data, wanted):
        into = self.decoder.wanted() if wanted else None
        if into:
            taken = into[: len(data)]
            taken[:] = data[: len(taken)]
            self.decoder.feed(taken)
            data = data[len(taken) :]
        if data:
            self._fed = bytearray(data)
            self.decoder.feed(memoryview(self._fed))

    def turn(self, most, put_back):
        """Take at most so many frames, then put the last one back or not, and end the turn."""
        for _ in range(most):
            frame = self.decoder.next_frame()
            if frame is None:
                break
            self.frames.append(bytes(frame))
            if not self.decoder.has_frame():
                break
        if put_back and self.frames:
            self.decoder.put_back(memoryview(bytearray(self.frames.pop())))
        self.decoder.pause()
        self._fed[:] = b"\xee" * len(self._fed)


TURNS = st.tuples(st.integers(0, 40), st.booleans(), st.integers(0, 3), st.booleans())


@given(st.lists(st.binary(max_size=30), max_size=8), st.lists(TURNS, max_size=20))
def test_frames_come_out_whole_and_in_order_however_turns_cut_pause_and_put_them_back(bodies, turns):
    stream, taker = framed(*bodies), Taker()
    for size, wanted, most, put_back in turns:
        taker.feed(stream[:size], wanted)
        stream = stream[size:]
        taker.turn(most, put_back)
    taker.feed(stream, False)
    taker.turn(len(bodies) + 1, False)
    assert taker.frames == bodies


# --- a frame that came alone -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"\0\0\0\x05hello", b"\0\0\0\0"])
def test_bytes_that_are_one_whole_frame_need_no_feeding(data):
    assert FrameDecoder(100).sole_frame(memoryview(bytearray(data))) == data[4:]


@pytest.mark.parametrize(
    "data",
    [b"", b"\0\0", b"\0\0\0\x05hell", b"\0\0\0\x05hello!", b"\0\0\0\x01a\0\0\0\x01b", b"\xff\xff\xff\xff"],
)
def test_bytes_that_are_less_more_or_too_much_are_fed(data):
    assert FrameDecoder(100).sole_frame(memoryview(bytearray(data))) is None


@pytest.mark.parametrize("begun", [b"\0", b"\0\0\0\x09", b"\0\0\0\x09hello"])
def test_what_follows_the_beginning_of_a_frame_is_no_frame_of_its_own(begun):
    decoder = FrameDecoder(100)
    assert feed(decoder, begun) == []
    assert decoder.sole_frame(memoryview(bytearray(b"\0\0\0\x01a"))) is None


def test_nor_is_what_follows_bytes_that_were_not_read():
    decoder = FrameDecoder(100)
    decoder.feed(memoryview(bytearray(b"\0\0\0\x01a\0\0\0\x01b")))
    assert decoder.next_frame() == b"a"
    decoder.pause()
    assert decoder.sole_frame(memoryview(bytearray(b"\0\0\0\x01c"))) is None


def test_a_frame_that_comes_alone_after_others_were_taken_needs_no_feeding():
    decoder = FrameDecoder(100)
    assert feed(decoder, framed(b"a", b"b")) == [b"a", b"b"]
    assert decoder.sole_frame(memoryview(bytearray(framed(b"c")))) == b"c"


class NoMemory:
    """A process that has memory for `buffers_left` more buffers."""

    def __init__(self, buffers_left):
        self.buffers_left = buffers_left

    def __call__(self, *arguments):
        self.buffers_left -= 1
        if self.buffers_left < 0:
            raise MemoryError
        return bytearray(*arguments)


@pytest.mark.parametrize("buffers", range(5))
def test_a_frame_without_memory_ends_the_stream_after_the_frames_before_it(monkeypatch, buffers):
    decoder, frame = FrameDecoder(MAX_FRAME_BYTES), bytes(10 * FIRST_BYTES)
    stream = memoryview(bytearray(framed(b"before", frame)))
    monkeypatch.setattr(frame_decoder, "bytearray", NoMemory(buffers), raising=False)
    frames = []
    with pytest.raises(WireError, match="no memory for its request, a frame of 10485760 bytes"):
        for at in range(0, len(stream), 100_000):
            if decoder.feed(stream[at : at + 100_000]):
                frames += take(decoder)
    assert [bytes(taken) for taken in frames] in ([b"before"], []) and decoder.partial is None
    assert decoder.sole_frame(memoryview(bytearray(framed(b"next")))) is None
    with pytest.raises(WireError):
        decoder.next_frame()


def test_a_paused_frame_without_memory_to_go_on_ends_the_stream(monkeypatch):
    decoder = FrameDecoder(MAX_FRAME_BYTES)
    feed(decoder, framed(bytes(10 * FIRST_BYTES))[:70_000])
    monkeypatch.setattr(frame_decoder, "bytearray", NoMemory(0), raising=False)
    decoder.shrink()
    decoder.grow()
    assert decoder.partial is None and decoder.feed(memoryview(b"more"))
    with pytest.raises(WireError, match="no memory"):
        decoder.next_frame()


def test_a_frame_that_cannot_be_kept_for_later_ends_the_stream(monkeypatch):
    decoder = FrameDecoder(MAX_FRAME_BYTES)
    monkeypatch.setattr(frame_decoder, "bytearray", NoMemory(0), raising=False)
    decoder.put_back(memoryview(bytes(500)))
    decoder.pause()
    with pytest.raises(WireError, match="no memory for its request, a frame of 500 bytes"):
        decoder.next_frame()


def test_the_frames_that_follow_are_seen_and_stay_where_they_are():
    decoder = FrameDecoder(MAX_FRAME_BYTES)
    decoder.feed(memoryview(bytearray(framed(b"one", b"two", b"three", b"four")[:-1])))
    assert decoder.next_frame() == b"one"
    assert [bytes(frame) for frame in decoder.following(5)] == [b"two", b"three"]
    assert [bytes(frame) for frame in decoder.following(1)] == [b"two"]
    assert take(decoder) == [b"two", b"three"] and list(decoder.following(5)) == []


def test_no_frame_that_follows_one_too_long_is_seen():
    decoder = FrameDecoder(3)
    decoder.feed(memoryview(bytearray(framed(b"one", b"four", b"two"))))
    assert [bytes(frame) for frame in decoder.following(5)] == [b"one"]
