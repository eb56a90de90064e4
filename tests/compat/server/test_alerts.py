"""The alert rules of deploy/ fire when they should, say what they mean, and are silent about a sound server.

`promtool test rules` evaluates them as Prometheus does.
"""

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.patience import SECONDS

ALERTS = Path(__file__).resolve().parents[3] / "deploy" / "prometheus" / "alerts.yml"
RULES = {rule["alert"]: rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]}
EVERY = "15s"

# (alert, series, time, labels, summary). A series is written as promtool has it: `1x4 0x20` is 1, four times more, then
# 0 and twenty times more, one sample each 15 s; `0+10x40` rises by 10. An alert lacks a label that is None.
FIRING = [
    ("FlakelogDown", {'up{job="flakelog"}': "1x4 0x20"}, "4m", {"job": "flakelog"}, "a does not answer"),
    ("FlakelogDiskFull", {"flakelog_disk_full": "0x4 1x8"}, "2m", {}, "The disk of a is full"),
    (
        "FlakelogDiskFillsUp",
        {"flakelog_disk_usable_bytes": "1000000000-1000000x320", "flakelog_disk_full": "0x320"},
        "75m",
        {},
        "The disk of a will be full within 4 hours",
    ),
    (
        "FlakelogCertificateExpires",
        {'flakelog_tls_certificate_expiry_seconds{listener="SSL"}': "1209000x8"},
        "2m",
        {"listener": "SSL"},
        "The certificate of SSL at a expires in less than 14 days",
    ),
    (
        "FlakelogCertificateRefused",
        {'flakelog_tls_refused{listener="BROKERS"}': "0 1x30"},
        "6m",
        {"listener": "BROKERS"},
        "The listener BROKERS at a refuses its new keys or authorities",
    ),
    ("FlakelogPartitionsOffline", {"flakelog_partitions_offline": "0 2x8"}, "1m", {}, "2 partitions of a are offline"),
    (
        "FlakelogNoLeader",
        {"flakelog_controller_offline_partitions": "0 2x8"},
        "2m",
        {},
        "2 partitions of the cluster have no leader, says a",
    ),
    (
        "FlakelogImageStale",
        {"flakelog_image_stale": "0x4 1x20"},
        "2m",
        {},
        "The controller and a do not reach each other or another broker",
    ),
    (
        "FlakelogZooKeeperAway",
        {"flakelog_zookeeper_connected": "1x4 0x20"},
        "2m",
        {},
        "ZooKeeper does not answer a",
    ),
    (
        "FlakelogNoController",
        {"flakelog_active_controller": "1x4 0x20"},
        "4m",
        {"instance": None},
        "The cluster has 0 controllers, and needs one",
    ),
    (
        "FlakelogUncleanElections",
        {"flakelog_unclean_leader_elections_total": "0x4 2x20"},
        "5m",
        {},
        "a elected 2 leaders that may lack messages",
    ),
    (
        "FlakelogUnderMinIsr",
        {"flakelog_under_min_isr_partitions": "0 3x8"},
        "2m",
        {},
        "3 partitions that a leads refuse messages with acks=all",
    ),
    (
        "FlakelogUnderReplicated",
        {"flakelog_under_replicated_partitions": "0 3x80"},
        "17m",
        {},
        "3 partitions that a leads lack a copy",
    ),
    ("FlakelogCopiesFail", {"flakelog_failed_partitions": "0 1x8"}, "1m", {}, "a has stopped to copy 1 partitions"),
    (
        "FlakelogIdsEnd",
        {'flakelog_ids_lease_left_seconds{worker="3"}': "30 30 8x8"},
        "1m",
        {"worker": "3"},
        "Worker 3 of a has ids for 8s",
    ),
    (
        "FlakelogIdsWaitForClock",
        {"flakelog_partitions_waiting_for_clock": "0 1x10"},
        "2m",
        {},
        "1 partitions of a refuse messages",
    ),
    (
        "FlakelogClockOff",
        {"flakelog_ids_clock_offset_seconds": "-1.5x40"},
        "8m",
        {},
        "The clock of a differs from its peers' by 1.5s",
    ),
    (
        "FlakelogLagGrows",
        {
            f'flakelog_group_lag_messages{{group="{group}",topic="t",partition="{number}"}}': "0+10000x200"
            for group in ("f", "g")
            for number in (0, 1)
        },
        "20m",
        {"topic": "t"},
        "2 groups fall behind on t",
    ),
    (
        "FlakelogLagLeftOut",
        {"flakelog_group_partitions_left_out": "5x100"},
        "20m",
        {},
        "a shows the lag of some groups only",
    ),
    (
        "FlakelogPartitionsLeftOut",
        {"flakelog_partitions_left_out": "5x100"},
        "20m",
        {},
        "a shows the figures of some partitions only",
    ),
    ("FlakelogRequestsFail", {"flakelog_failed_fetch_requests_total": "0+60x60"}, "12m", {}, "a refuses requests"),
    (
        "FlakelogProduceSlow",
        {
            'flakelog_request_seconds_bucket{api="Produce",le="1.0"}': "0x80",
            'flakelog_request_seconds_bucket{api="Produce",le="2.5"}': "0+10x80",
            'flakelog_request_seconds_bucket{api="Produce",le="+Inf"}': "0+10x80",
        },
        "16m",
        {},
        "Every hundredth Produce at a takes more than a second",
    ),
    (
        "FlakelogFilesRunOut",
        {'process_open_fds{job="flakelog"}': "95x40", 'process_max_fds{job="flakelog"}': "100x40"},
        "8m",
        {"job": "flakelog"},
        "a has nearly as many files open as it may",
    ),
    (
        "FlakelogScrubFindsDamage",
        {"flakelog_scrub_errors_total": "0x4 1x8"},
        "3m",
        {},
        "The scrub of a found segments that are damaged or cannot be read",
    ),
    (
        "FlakelogUncleanable",
        {"flakelog_partitions_uncleanable": "1x300"},
        "65m",
        {},
        "1 partitions of a are not compacted any more",
    ),
    (
        "TopologyDown",
        {'up{job="topologies"}': "0x40"},
        "6m",
        {"job": "topologies"},
        "The topology at a does not run",
    ),
    (
        "TopologyOutage",
        {'flakelog_topology_outage_seconds{component="numbers"}': "400x8"},
        "1m",
        {"component": "numbers"},
        "A service that numbers needs has been down for 6m 40s",
    ),
    (
        "TopologyNoProgress",
        {'flakelog_topology_no_progress_seconds{component="numbers",topic="t",partition="0"}': "0x4 60+15x8"},
        "3m",
        {"component": "numbers", "topic": "t"},
        "numbers settles no message of t for 2m 45s",
    ),
    (
        "TopologyLags",
        {'flakelog_topology_lag_seconds{component="numbers",topic="t",partition="0"}': "700x100"},
        "20m",
        {"component": "numbers", "topic": "t"},
        "numbers is 11m 40s behind on t",
    ),
    (
        "TopologyDeadLetters",
        {'flakelog_topology_messages_total{component="numbers",outcome="dead_lettered"}': "0x4 3x20"},
        "5m",
        {"component": "numbers", "outcome": "dead_lettered"},
        "numbers gave up 3 messages in the last hour",
    ),
]
SOUND = {
    'up{job="flakelog"}': "1x400",
    'up{job="topologies"}': "1x400",
    "flakelog_disk_full": "0x400",
    "flakelog_disk_usable_bytes": "1000000000-1000x400",
    'flakelog_tls_refused{listener="BROKERS"}': "0x100 1x4 0x296",
    "flakelog_partitions_offline": "0x400",
    "flakelog_controller_offline_partitions": "0x100 4x2 0x300",
    "flakelog_unclean_leader_elections_total": "7x400",
    "flakelog_image_stale": "0x400",
    "flakelog_controller_unreached_brokers": "0x400",
    "flakelog_under_min_isr_partitions": "0x100 4x2 0x300",
    "flakelog_under_replicated_partitions": "0x100 9x30 0x300",
    "flakelog_failed_partitions": "0x400",
    'flakelog_ids_lease_left_seconds{worker="3"}': "25x400",
    "flakelog_ids_clock_offset_seconds": "0.02x400",
    'flakelog_group_lag_messages{group="busy",topic="t",partition="0"}': "0+100x50 5000x350",
    'flakelog_group_lag_messages{group="stopped",topic="t",partition="0"}': "20000x400",
    "flakelog_failed_produce_requests_total": "0x200 3x200",
    'flakelog_request_seconds_bucket{api="Produce",le="1.0"}': "0+10x400",
    'flakelog_request_seconds_bucket{api="Produce",le="+Inf"}': "0+10x400",
    'process_open_fds{job="flakelog"}': "95x10 50x390",
    'process_max_fds{job="flakelog"}': "100x400",
    "flakelog_scrub_errors_total": "0x400",
    "flakelog_topology_running": "1x400",
    'flakelog_topology_outage_seconds{component="numbers"}': "0x100 60x10 0x290",
    'flakelog_topology_lag_seconds{component="numbers",topic="t",partition="0"}': "700x20 3x380",
    'flakelog_topology_messages_total{component="numbers",outcome="dead_lettered"}': "7x400",
}


def series(found):
    """Return series of the instance `a` as promtool takes them."""
    labelled = {name if "{" in name else name + "{}": values for name, values in found.items()}
    return [
        {"series": name.replace("{", '{instance="a",', 1).replace(",}", "}"), "values": values}
        for name, values in labelled.items()
    ]


def evaluate(directory, *tests):
    """Run promtool over unit tests of the rules; it says which alerts differ from the expected ones."""
    if shutil.which("promtool") is None:
        pytest.skip("no promtool (of Prometheus): the alert rules are parsed and not evaluated")
    plan = {"rule_files": [str(ALERTS)], "evaluation_interval": EVERY, "tests": list(tests)}
    (directory / "plan.yml").write_text(yaml.safe_dump(plan))
    command = ["promtool", "test", "rules", str(directory / "plan.yml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr


def fires(alert, found, time, labels, summary):
    rule = RULES[alert]
    description = rule["annotations"]["description"]
    labels = {"instance": "a", **labels, **rule["labels"]}
    expected = {
        "exp_labels": {name: value for name, value in labels.items() if value is not None},
        "exp_annotations": {"summary": summary, "description": description},
    }
    wanted = {"eval_time": time, "alertname": alert, "exp_alerts": [expected]}
    return {"interval": EVERY, "input_series": series(found), "alert_rule_test": [wanted]}


def test_every_alert_has_a_test():
    assert [alert for alert, *_ in FIRING] == list(RULES)


def test_every_alert_fires_and_says_what_it_means(tmp_path):
    evaluate(tmp_path, *(fires(*each) for each in FIRING))


def test_no_alert_fires_at_a_sound_server(tmp_path):
    silent = [
        {"eval_time": time, "alertname": alert, "exp_alerts": []} for alert in RULES for time in ("4m", "30m", "95m")
    ]
    evaluate(tmp_path, {"interval": EVERY, "input_series": series(SOUND), "alert_rule_test": silent})


def test_a_server_that_comes_up_on_a_smaller_disk_fills_none_up(tmp_path):
    found = {"flakelog_disk_usable_bytes": "900000000000x100 1000000000-1000x300", "flakelog_disk_full": "0x400"}
    times = [f"{minutes}m" for minutes in range(25, 100, 3)]
    silent = [{"eval_time": time, "alertname": "FlakelogDiskFillsUp", "exp_alerts": []} for time in times]
    evaluate(tmp_path, {"interval": EVERY, "input_series": series(found), "alert_rule_test": silent})
