"""`flakelog mirror` as a process: it continues after a kill, and shows its figures."""

import json
import random
import re
from urllib.request import urlopen

import pytest
from click.testing import CliRunner

from broker.client.group_requests import fetch_offsets, find_coordinator
from flakelog.cli import main
from flakelog.operations.groups import list_groups
from tests.compat.mirror.mirror_process import committed_records, end_of, has_all, records_of, send
from tests.compat.tls_files import TlsFiles
from tests.patience import until

RECORDS = 3_000  # before each kill


@pytest.mark.parametrize(
    ("kills", "options"),
    (
        (1, ()),
        pytest.param(20, (), marks=pytest.mark.soak),
        pytest.param(20, ("--exactly-once",), marks=pytest.mark.soak),
    ),
)
def test_a_mirror_that_is_killed_goes_on_and_loses_nothing(
    source, target, source_client, target_client, process_of, topic, kills, options
):
    source_client.create_topic(topic, 2)
    mirror, chance, sent = process_of(topic, "--instance", "first", *options), random.Random(34), 0
    for _ in range(kills):
        send(source.bootstrap_servers, topic, range(sent, sent + RECORDS))
        sent += RECORDS
        mirror.start()
        has_all(target_client, topic, end_of(target_client, topic) + chance.randrange(1, RECORDS))
        mirror.kill()
    with mirror:
        until(lambda: committed(source_client, mirror_group(source_client, topic), topic) == sent, "the last commit")
    number = committed_records(target_client, topic)
    assert number == sent or not options
    copied = records_of(target.bootstrap_servers, topic, number)
    wanted = records_of(source.bootstrap_servers, topic, sent)
    assert {n: list(dict.fromkeys(records)) for n, records in copied.items()} == wanted


def mirror_group(client, topic):
    return next(group.group_id for group in list_groups(client) if f".{topic}." in group.group_id)


def committed(client, group, topic):
    """Return the sum of the offsets that a group has committed."""
    coordinator = client.run(find_coordinator(client.core, group))
    keys = [(topic, number) for number in range(client.topic(topic).partitions)]
    return sum(stored.offset for stored in client.run(fetch_offsets(client.core, coordinator, group, keys)).values())


def test_several_sources_with_a_prefix_of_each_feed_one_target(
    source, target, source_client, target_client, process_of, topic, tmp_path
):
    files = TlsFiles(tmp_path)
    (tmp_path / "http.properties").write_text(
        f"flakelog.http.ssl.enable=true\nssl.keystore.type=PEM\nssl.keystore.location={files.broker}\n"
    )
    for client, broker, values in ((source_client, source, range(30)), (target_client, target, range(50, 70))):
        client.create_topic(topic, 1)
        send(broker.bootstrap_servers, topic, values)
    more = "--prefix", "far.", "--from", target.bootstrap_servers, "--prefix", "near.", "--json", "--http-port", "0"
    with process_of(topic, *more, "--http-config", str(tmp_path / "http.properties")) as mirror:
        has_all(target_client, f"far.{topic}", 30)
        has_all(target_client, f"near.{topic}", 20)
        url = "https://" + until(lambda: re.search(r"ready: http=(\S+)", mirror.log), "the port").group(1)
        metrics = until(lambda: copied_all(url, topic, files.context()), "the counts")
        assert json.loads(urlopen(f"{url}/health", context=files.context()).read())["healthy"]
    for prefix, broker, number in (("far.", source, 30), ("near.", target, 20)):
        copies = records_of(target.bootstrap_servers, prefix + topic, number)
        assert copies == records_of(broker.bootstrap_servers, topic, number)
        servers = broker.bootstrap_servers
        assert f'flakelog_mirror_lag_messages{{partition="0",source="{servers}",topic="{topic}"}} 0.0' in metrics
        line = [fields for fields in json_lines(mirror.log) if fields["from"] == servers][-1]
        row = {"topic": topic, "partition": 0, "copied": number, "end": number, "lag": 0}
        assert line["records"] == number and line["partitions"] == [row] and line["stopped"] == {}
        assert line["topics"][0]["records"] == number and line["topics"][0]["errors"] == 0


def test_a_mirror_is_listed_paused_and_resumed(
    source, target, source_client, target_client, mirror_of, topic
):
    def command(*words):
        return CliRunner().invoke(main, ["mirror", *words, "--servers", target.bootstrap_servers])

    def rows():
        listed = map(json.loads, command("list", "--json").output.splitlines())
        return [row for row in listed if row["name"] == topic]

    source_client.create_topic(topic, 1)
    send(source.bootstrap_servers, topic, range(20))
    refused = command("pause", topic)
    assert refused.exit_code == 1 and f"no mirror {topic} copies into this cluster now" in refused.output
    with mirror_of(topic) as mirror:
        has_all(target_client, topic, 20)
        row = until(lambda: next((row for row in rows() if row["records"] == 20), None), "the row")
        assert row["state"] == "running" and row["group"] == mirror.group and topic in command("list").output
        assert command("pause", topic).output == f"the mirror {topic} is paused\n"
        until(lambda: mirror.figures().state == "paused", "the pause")
        send(source.bootstrap_servers, topic, range(20, 30))
        assert "is paused already" in command("pause", topic).output
    until(lambda: not rows(), "the end of a mirror that stops cleanly")
    with mirror_of(topic) as mirror:
        assert mirror.figures().state == "paused"
        until(lambda: [row["state"] for row in rows()] == ["paused"], "the row of a mirror that begins paused")
        until(lambda: mirror.figures().lag == 10, "the lag of a mirror that has copied nothing since its start")
        send(source.bootstrap_servers, topic, range(30, 35))
        until(lambda: [row["lag"] for row in rows()] == [15], "the lag grows while the mirror is paused")
        assert end_of(target_client, topic) == 20
        assert command("resume", topic).exit_code == 0
        has_all(target_client, topic, 35)
    assert "is not paused" in command("resume", topic).output


def copied_all(url, topic, context):
    """Return the metrics once they count all records of both sources, None before."""
    text = urlopen(f"{url}/metrics", context=context).read().decode()
    counts = re.findall(rf'flakelog_mirror_records_total{{source="\S+",topic="{topic}"}} (\S+)', text)
    return text if sorted(counts) == ["20.0", "30.0"] else None


def json_lines(log):
    return [json.loads(line) for line in log.splitlines() if line.startswith("{")]
