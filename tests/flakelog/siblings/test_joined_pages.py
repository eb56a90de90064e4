"""flakelog.siblings.joined_pages: the pages of several brokers as one."""

import json

from prometheus_client.parser import text_string_to_metric_families

from flakelog.siblings.joined_pages import joined_health, joined_metrics, joined_ready

PAGE = b"""# HELP flakelog_connections Open connections.
# TYPE flakelog_connections gauge
flakelog_connections 3.0
# HELP flakelog_requests_total Requests.
# TYPE flakelog_requests_total counter
flakelog_requests_total{api="Fetch",client="a b{c}"} 7.0
"""
OTHER = b"""# HELP flakelog_connections Open connections.
# TYPE flakelog_connections gauge
flakelog_connections 4.0
# HELP flakelog_only_here One broker has it.
# TYPE flakelog_only_here gauge
flakelog_only_here 1.0
"""


def samples(page):
    families = text_string_to_metric_families(page.decode())
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value for family in families for sample in family.samples
    }


def test_each_sample_has_the_label_of_its_broker_and_each_metric_one_header():
    page = b"".join(joined_metrics({1: PAGE, 3: OTHER}, [2]))
    assert samples(page) == {
        ("flakelog_connections", ("broker", "1")): 3.0,
        ("flakelog_connections", ("broker", "3")): 4.0,
        ("flakelog_requests_total", ("api", "Fetch"), ("broker", "1"), ("client", "a b{c}")): 7.0,
        ("flakelog_only_here", ("broker", "3")): 1.0,
        ("flakelog_broker_up", ("broker", "1")): 1.0,
        ("flakelog_broker_up", ("broker", "2")): 0.0,
        ("flakelog_broker_up", ("broker", "3")): 1.0,
    }
    assert page.count(b"# HELP flakelog_connections") == page.count(b"# TYPE flakelog_connections") == 1


def test_a_broker_that_does_not_answer_or_is_not_well_makes_all_not_well():
    well, ill = (json.dumps({"healthy": is_healthy}).encode() for is_healthy in (True, False))
    assert joined_health({1: well, 2: well}, [])[0]
    assert not joined_health({1: well, 2: ill}, [])[0]
    good, details = joined_health({1: well}, [2])
    assert not good and details == {"healthy": False, "without_answer": [2], "brokers": {"1": {"healthy": True}}}


def test_the_server_is_ready_while_the_brokers_that_answer_are():
    """A process that is started again must not take the partitions of the others away."""
    ready, not_ready = (json.dumps({"ready": is_ready}).encode() for is_ready in (True, False))
    assert joined_ready({1: ready}, [2])[0]
    assert not joined_ready({1: ready, 2: not_ready}, [])[0]
