"""idgen.http_plain: which requests are plain, and how they are answered (RFC 9110, RFC 9112)."""

import json
from email.utils import parsedate_to_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordination.memory import Ensemble, MemoryCoordinator
from idgen.config import IdgenConfig
from idgen.errors import SequenceExhausted
from idgen.fair_queue import UNLIMITED, TurnBudget
from idgen.http_plain import HEAD_BYTES_MAX, Heads, NotPlain, PlainCaller, is_plain
from idgen.service import IdService
from tests.idgen.driving import NOW, claim, settle

CURL = b"POST /id HTTP/1.1\r\nHost: 127.0.0.1:8609\r\nUser-Agent: curl/7.88.1\r\nAccept: */*\r\n\r\n"
REQUESTS = (
    b"POST /id HTTP/1.1\r\nHost: ids\r\nUser-Agent: python-requests/2.34\r\nAccept-Encoding: gzip, deflate\r\n"
    b"Accept: */*\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n"
)
BARE = b"POST /id HTTP/1.1\r\n\r\n"


@pytest.fixture
def service():
    return IdService(settle(claim(number=103), MemoryCoordinator(Ensemble()), NOW), IdgenConfig())


@pytest.fixture
def caller(service):
    return PlainCaller(service, Heads(), TurnBudget(1_000))


def ask(caller, data=b"", most=UNLIMITED, now_ms=NOW):
    """Receive `data`; return (status line, headers, body) of each answer."""
    caller.receive(data)
    return [read(answer) for answer in caller.answers(most, now_ms, 0)]


def read(answer):
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    assert int(headers["Content-Length"]) == len(body) and body.endswith(b"\n")
    return status, headers, json.loads(body)


@pytest.mark.parametrize("request_", [CURL, REQUESTS, BARE, REQUESTS.replace(b"Content-Length", b"content-length")])
def test_what_programs_send_for_one_id_is_plain(caller, service, request_):
    [(status, headers, body)] = ask(caller, request_)
    assert status == "HTTP/1.1 200 OK" and headers["Content-Type"] == "application/json"
    assert body["id_str"] == str(body["id"]) and service.decode(body["id"]).time_ms == NOW
    assert parsedate_to_datetime(headers["Date"]).timestamp() == NOW // 1_000
    assert caller.idle and service.counters.by_user_agent == {"http": 1}


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /id HTTP/1.1\r\n\r\n",
        b"HEAD /id HTTP/1.1\r\n\r\n",
        b"POST /ids?count=2 HTTP/1.1\r\n\r\n",
        b"POST /id?x=1 HTTP/1.1\r\n\r\n",
        b"POST /id HTTP/1.0\r\n\r\n",
        b"post /id HTTP/1.1\r\n\r\n",
        b"POST http://ids/id HTTP/1.1\r\n\r\n",
        b"POST  /id HTTP/1.1\r\n\r\n",
        b"\r\nPOST /id HTTP/1.1\r\n\r\n",
        b"POST /id HTTP/1.1\nHost: ids\n\n",
        b"PRI * HTTP/2.0\r\n\r\n",
        *(
            b"POST /id HTTP/1.1\r\nHost: ids\r\n" + header + b"\r\n\r\n"
            for header in (
                b"Connection: close",
                b"connection: keep-alive, Upgrade",
                b"Connection: keep-alive ",
                b"Content-Length: 1",
                b"Content-Length: 00",
                b"Content-Length: +0",
                b"Content-Length: 0\r\nContent-Length: 0",
                b"Content-Length : 0",
                b"Transfer-Encoding: chunked",
                b"transfer-encoding: identity",
                b"Expect: 100-continue",
                b"Upgrade: h2c",
                b"TE: trailers",
                b"X: 1\r\n folded",
                b"X: \x00",
                b"X: caf\xc3\xa9",
                b"X: \x7f",
                b"X: a\rb",
                b"no colon",
                b": no name",
            )
        ),
    ],
)
def test_whatever_else_is_left_for_the_site_with_all_its_bytes(caller, request_):
    assert not is_plain(request_)
    with pytest.raises(NotPlain):
        ask(caller, request_ + CURL)
    assert caller.take_unanswered() == request_ + CURL


def test_requests_sent_together_are_answered_in_their_order_up_to_the_first_other_one(caller):
    caller.receive(CURL + CURL + REQUESTS + CURL + b"GET /health HTTP/1.1\r\n\r\n" + CURL)
    answers = caller.answers(UNLIMITED, NOW, 0)
    ids = [read(next(answers))[2]["id"] for _ in range(4)]
    assert ids == sorted(set(ids))
    with pytest.raises(NotPlain):
        next(answers)
    assert caller.take_unanswered() == b"GET /health HTTP/1.1\r\n\r\n" + CURL


@given(st.lists(st.sampled_from([CURL, REQUESTS, BARE]), max_size=6), st.data())
def test_requests_come_out_whole_however_the_bytes_are_cut(sent, data):
    held = settle(claim(), MemoryCoordinator(Ensemble()), NOW)
    caller = PlainCaller(IdService(held, IdgenConfig()), Heads(), TurnBudget(1_000))
    stream, answered = b"".join(sent), 0
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        answered += len(ask(caller, stream[:size]))
        stream = stream[size:]
    assert answered == len(sent) and caller.take_unanswered() == b""


@pytest.mark.parametrize("size", [HEAD_BYTES_MAX - 1, HEAD_BYTES_MAX, 10 * HEAD_BYTES_MAX])
def test_a_head_without_an_end_is_kept_up_to_a_limit(caller, size):
    data = (b"POST /id HTTP/1.1\r\nX: " + b"a" * size)[:size]
    if size < HEAD_BYTES_MAX:
        assert ask(caller, data) == [] and caller.idle
    else:
        with pytest.raises(NotPlain):
            ask(caller, data)


def test_a_head_of_blanks_is_judged_in_no_time():
    assert not is_plain(b"POST /id HTTP/1.1\r\nX:" + b" " * (HEAD_BYTES_MAX - 50) + b"\x01\r\n\r\n")


def test_as_many_are_answered_as_may_be_and_the_others_with_the_next_turn(caller):
    assert len(ask(caller, CURL * 3, most=2)) == 2 and not caller.idle
    assert len(ask(caller, most=2)) == 1 and caller.idle


def test_ids_that_ran_out_are_to_be_waited_for(caller, service):
    service.claim.worker.next_ids(service.claim.worker.max_batch - 1, NOW)
    assert len(ask(caller, CURL * 3, most=5)) == 1 and not caller.idle  # the turn gave one id, so it is no error
    with pytest.raises(SequenceExhausted):
        ask(caller, most=5)
    assert len(ask(caller, most=5, now_ms=NOW + 1)) == 2


def test_what_waiting_does_not_cure_is_refused_as_the_site_does(caller, service):
    service.claim.close(NOW)
    [(status, headers, body)] = ask(caller, CURL)
    assert status == "HTTP/1.1 503 Service Unavailable" and headers["Retry-After"] == "1"
    assert body["error"] == "Fenced" and service.counters.exceptions == {"Fenced": 1}


def test_the_date_is_of_the_second():
    heads = Heads()
    assert heads.of(10, NOW) is heads.of(10, NOW + 999)
    assert b":21 GMT" in heads.of(10, NOW + 1_000) and b"Content-Length: 11\r\n" in heads.of(11, NOW + 1_000)
