"""A server that gets a stop signal while it starts, or twice, ends soon with exit code 0 and without a traceback."""

import pytest

from idgen.config import IdgenConfig
from idgen.snowflake import Snowflake
from tests.compat.server_process import ServerProgram
from tests.patience import MS


@pytest.mark.parametrize("signals", [1, 3])
def test_told_to_stop_while_it_waits_for_a_worker_number_it_just_stops(tmp_path, signals):
    """A configured worker number stays reserved after a crash; a stop while the server waits for it is no error."""
    server = ServerProgram(tmp_path / "data", {"flakelog.ids.worker": "5", "flakelog.ids.lead.ms": 10 * MS}).start()
    server.kill()
    begin = server.mark()
    server.launch()
    server.wait_for_log("waiting for a worker number", since=begin)
    for _ in range(signals - 1):
        server.send_signal(15)
    assert server.stop() == 0
    assert "Traceback" not in server.log_since(begin) and "Error" not in server.log_since(begin)


def test_where_all_worker_numbers_are_taken_it_says_so_and_waits_on(tmp_path):
    """The server waits instead of exiting, because neither an operator nor a restart could provide a number."""
    layout = {"flakelog.ids.worker.bits": "0", "flakelog.ids.datacenter.bits": "0", "flakelog.ids.sequence.bits": "22"}
    config = IdgenConfig(ids_worker_bits=0, ids_datacenter_bits=0, ids_sequence_bits=22)
    with Snowflake(directory=tmp_path / "data" / "ids", config=config):
        server = ServerProgram(tmp_path / "data", layout | {"flakelog.start.timeout.ms": "300"}, command="idgen")
        server.launch()
        try:
            for _ in range(2):
                server.wait_for_log("all 1 worker numbers", since=server.mark())
            assert server.running
            assert server.stop() == 0
        finally:
            server.kill()
    assert "asked for again every 10 s or less often" in server.log and "Traceback" not in server.log


def test_an_impatient_operator_sees_no_traceback(tmp_path):
    server = ServerProgram(tmp_path / "data").start()
    for number in (2, 15, 2):
        server.send_signal(number)
    assert server.stop() == 0
    assert "Traceback" not in server.log


def test_it_can_be_started_again_immediately(tmp_path):
    server = ServerProgram(tmp_path / "data", {"flakelog.ids.worker": "5"}).start()
    assert server.stop() == 0
    with server.start():
        assert server.running
