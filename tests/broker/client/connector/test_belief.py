"""How long a consumer believes in its session."""

from broker.client.connector.belief import SessionBelief
from coordination.port import Check, ConnectionLost, Get, Multi

WRITE = Multi((Check("/c", 0),))


def test_a_session_lives_from_the_sending_of_a_write_that_was_answered():
    belief = SessionBelief(900)
    assert not belief.lives(0) and belief.until_ms is None
    belief.sent(WRITE, 100)
    assert not belief.lives(101), "the answer is the proof"
    belief.answered(WRITE, (None,))
    assert belief.lives(999) and not belief.lives(1_000)
    assert belief.proof_due_ms == 400


def test_reads_and_lost_answers_prove_nothing():
    belief = SessionBelief(900)
    for operation, outcome in ((Get("/c"), object()), (WRITE, ConnectionLost())):
        belief.sent(operation, 100)
        belief.answered(operation, outcome)
        assert belief.until_ms is None


def test_a_shorter_timeout_counts_from_the_last_proof_too():
    belief = SessionBelief(900)
    belief.sent(WRITE, 100)
    belief.answered(WRITE, (None,))
    belief.timeout_ms = 300
    assert belief.lives(399) and not belief.lives(400)


def test_the_proofs_of_a_session_that_is_over_count_no_more():
    belief = SessionBelief(900)
    belief.sent(WRITE, 100)
    belief.end()
    belief.answered(WRITE, (None,))
    assert belief.until_ms is None
