"""What the log of a topology says when the broker or the topic is not there."""

import signal

from broker.client.blocking import Client
from tests.compat.server_process import ServerProcess
from tests.compat.storm.test_run_environments import Program

READER = """
from flakelog import LogSpout, SpoutConfig

made = Topology("reader")
config = SpoutConfig(spout_error_backoff_ms=5)
made.spout("log", LogSpout("words", servers={servers!r}, store={store!r}, config=config))
made.bolt("say", Bolt()).shuffle("log")
run(made)
"""


def test_a_missing_broker_and_a_missing_topic_are_named_and_so_is_their_return(tmp_path):
    settings = {"auto.create.topics.enable": "false"}
    with ServerProcess(tmp_path / "data", settings).keep_ports() as server:
        address = server.address
        server.kill()
        program = Program(READER.format(servers=address, store=str(tmp_path / "store")))
        first = program.wait_for_error("words ListPartitions failed: no broker answers")
        assert address in first and "start one with: flakelog server" in first
        server.start()
        reminder = program.wait_for_error("words ListPartitions still fails: topic words: UNKNOWN_TOPIC_OR_PARTITION")
        assert "create it with: flakelog topic create words" in reminder
        with Client(address) as client:
            client.create_topic("words")
        program.wait_for_error("words ListPartitions works again")
        program.wait_for_error("words-0 begins at offset 0: nothing stored")
        program.send(signal.SIGTERM)
        assert program.end()[0] == 0
