"""Dead letters of a spout inside Storm, and the exceptions that the bolts published."""

from twisted.internet.task import Clock

from partition_manager.dead_letter import ATTEMPTS
from partition_manager.ports import Buried, Bury, DeadLetter, Failed, FetchedRecord
from spout.figures.document import BoltsLately
from spout.multilang.named_letters import WAIT_SECONDS, LetterLines, NamedLetters
from spout.multilang.spout_task import FAILED

WHY = {("orders", 0, 7): "ValueError: bad, in store"}


class Letters:
    """The sink behind, which writes at once."""

    def __init__(self):
        self.errors = []
        self.is_closed = False

    def ask(self, request, answer):
        self.errors.append(request.letter.error)
        answer(Buried())

    def close(self):
        self.is_closed = True


class Bolts:
    """A reader whose answers the test gives."""

    def __init__(self):
        self.callbacks = []

    def read(self, answer, *, again=False):
        assert again, "what was read before says nothing of these messages"
        self.callbacks.append(answer)


class Session:
    def __init__(self):
        self.inner, self.bolts, self.clock, self.answers = Letters(), Bolts(), Clock(), []
        self.lines, self.logged = LetterLines(), []
        self.lines.say = lambda text, level: self.logged.append((text, level))
        self.sink = NamedLetters(self.inner, self.bolts, self.lines, self.clock)

    def bury(self, offset, error=FAILED):
        record = FetchedRecord(offset, None, 0, None, b"value")
        self.sink.ask(Bury(DeadLetter("orders", 0, record, 1, ATTEMPTS, 5, error)), self.answers.append)


def test_a_letter_names_the_exception_of_its_message_if_a_bolt_has_told_it():
    session = Session()
    session.bury(7)
    session.clock.advance(1)
    session.bury(8, "timeout: not acked inside Storm within 30 s")
    session.clock.advance(WAIT_SECONDS - 1)
    assert session.inner.errors == [] and len(session.bolts.callbacks) == 1, "letters are looked up together"
    session.bolts.callbacks.pop()(BoltsLately(False, WHY))
    assert session.inner.errors == ["ValueError: bad, in store", "timeout: not acked inside Storm within 30 s"]
    assert session.answers == [Buried(), Buried()]
    session.bury(9)
    session.clock.advance(WAIT_SECONDS)
    assert len(session.bolts.callbacks) == 1


def test_a_letter_that_has_a_reason_does_not_wait():
    session = Session()
    session.bury(7, "no JSON")
    assert session.answers == [Buried()]


def test_letters_that_wait_at_the_end_are_not_written_and_their_messages_come_again():
    session = Session()
    session.bury(7)
    session.sink.close()
    session.clock.advance(WAIT_SECONDS)
    assert isinstance(session.answers[0], Failed) and session.inner.is_closed and not session.bolts.callbacks


def test_the_line_about_a_letter_waits_with_it_and_names_the_exception():
    session = Session()
    session.bury(7)
    template = "orders-0 offset 7 failed 5 times and goes to the dead letters (attempts): {}"
    assert session.lines.keeps(template.format(FAILED), "warn")
    assert not session.lines.keeps("orders-0 offset 8 failed 5 times and goes to the dead letters", "warn")
    session.clock.advance(WAIT_SECONDS)
    session.bolts.callbacks.pop()(BoltsLately(False, WHY))
    assert session.logged == [(template.format("ValueError: bad, in store"), "warn")]
    session.bury(9)
    assert session.lines.keeps("orders-0 offset 9 failed 5 times", "warn")
    session.sink.close()
    assert session.logged[1:] == [("orders-0 offset 9 failed 5 times", "warn")]
