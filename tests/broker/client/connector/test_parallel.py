"""Several procedures as one: their batches go together, and each gets its own outcomes."""

import pytest

from broker.client.connector.parallel import together
from coordination.port import Get


def reads(*rounds):
    """Return the outcomes of one batch of reads after the other."""
    outcomes = []
    for paths in rounds:
        outcomes += yield tuple(Get(path) for path in paths)
    return outcomes


def carry_out(procedure):
    """Answer each read with its path; return the value of the procedure, and the paths of each batch."""
    batches = []
    try:
        batch = next(procedure)
        while True:
            batches.append([operation.path for operation in batch])
            batch = procedure.send(batches[-1])
    except StopIteration as stop:
        return stop.value, batches


def test_a_batch_has_the_operations_of_all_that_go_on():
    both = together([reads(["/a", "/b"], ["/c"]), reads(["/d"])])
    assert carry_out(both) == ([["/a", "/b", "/c"], ["/d"]], [["/a", "/b", "/d"], ["/c"]])


def test_procedures_without_operations_return_their_values():
    assert carry_out(together([reads(), reads(["/a"]), reads()])) == ([[], ["/a"], []], [["/a"]])
    assert carry_out(together([])) == ([], [])


def test_many_procedures_are_carried_out_in_groups():
    values, batches = carry_out(together(reads([f"/{number}"]) for number in range(1_200)))
    assert values == [[f"/{number}"] for number in range(1_200)]
    assert [len(batch) for batch in batches] == [500, 500, 200]


def test_an_error_of_one_ends_all():
    def fails():
        yield (Get("/a"),)
        raise ValueError("no")

    both = together([fails(), reads(["/b"])])
    next(both)
    with pytest.raises(ValueError, match="no"):
        both.send([None, None])
