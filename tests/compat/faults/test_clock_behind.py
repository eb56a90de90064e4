"""A server whose clock was a day ahead in an earlier run names the partitions, refuses in time, and has a way out."""

import json
import time

import pytest

from broker.client.blocking import Client
from broker.client.errors import BrokerError
from broker.log.storage.os_storage import OsStorage
from broker.wire.errors import ErrorCode
from idgen.layout import Layout
from idgen.worker import IdWorker
from tests.broker.engine_client import DAY_MS, WALL_MS, EngineBroker
from tests.compat.served_data import TOPIC, batch_of, values_in
from tests.compat.server.test_health import health
from tests.compat.server.test_metrics import read
from tests.compat.server_process import ServerProcess


@pytest.fixture
def ahead(tmp_path):
    """Return a data directory whose partition 0 was written by a clock a day ahead; partition 1 is empty."""
    (tmp_path / "data").mkdir()
    broker = EngineBroker(OsStorage(str(tmp_path / "data")), now_ms=int(time.time() * 1_000) - WALL_MS + DAY_MS)
    broker.worker = IdWorker(Layout(), 1, start_ms=broker.now.wall_ms, limit_ms=broker.now.wall_ms + DAY_MS)
    broker.create(TOPIC, 2)
    broker.connect().produce(TOPIC, b"of tomorrow")
    broker.services.logs.close()
    return tmp_path / "data"


def test_a_partition_a_day_ahead_is_refused_in_time_and_named_by_log_metrics_and_readiness(ahead):
    with ServerProcess(ahead) as server, Client(server.address) as client:
        server.wait_for_log("the last ids of 1 partitions are ahead of this machine's clock")
        assert read(server)["flakelog_partitions_ahead_of_clock", ()] == 1
        assert health(server, "/health/ready")[0] == 200, "nobody has met it"
        with pytest.raises(BrokerError, match="ahead of the broker's clock") as caught:
            client.produce(TOPIC, 0, batch_of(b"x"))
        assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
        client.produce(TOPIC, 1, batch_of(b"y"))
        status, body = health(server, "/health/ready")
        assert status == 503 and list(body["partitions_waiting_for_clock"]) == [f"{TOPIC}-0"]
        figures = read(server)
        assert figures["flakelog_partitions_waiting_for_clock", ()] == 1
        assert figures["flakelog_clock_wait_max_seconds", ()] >= 0
        waits = [labels for name, labels in figures if name == "flakelog_partition_clock_wait_seconds"]
        assert [set(dict(labels).values()) for labels in waits] == [{TOPIC, "0"}]
        server.wait_for_log("1 partitions refuse messages, because their last ids are ahead of this machine's clock")


def test_with_the_setting_it_goes_on_and_no_id_repeats_after_any_stop(ahead):
    """The steps of docs/ids-and-kubernetes.md."""
    settings = {"flakelog.ids.log.max.ahead.ms": 2 * DAY_MS}
    expected = [b"of tomorrow"]
    with ServerProcess(ahead, settings) as server:
        for run in range(3):
            with Client(server.address) as client:
                for number in range(10):
                    expected.append(b"%d %d" % (run, number))
                    client.produce(TOPIC, 0, batch_of(expected[-1]))
                    client.produce(TOPIC, 1, batch_of(expected[-1]))
                records, _ = client.fetch(TOPIC, 0, 0)
                others, _ = client.fetch(TOPIC, 1, 0)
                assert values_in(client, TOPIC) == expected
            status, body = health(server, "/health/ready")
            assert status == 200, body
            ids = [record.id for record in records]
            usual = [record.id for record in others]
            assert ids == sorted(set(ids)) and usual == sorted(set(usual)) and not set(ids) & set(usual)
            if run == 0:
                assert server.stop() == 0
                server.start()
            else:
                server.restart()
    marks = ahead / "ids" / "nodes" / "snowflake-servers-marks"
    roles = {json.loads(each.read_bytes().partition(b"\n")[2])["role"] for each in marks.glob("*/.node")}
    assert "log ahead" in roles
