"""The quota manager: the quota of a client, the clients that share it, and the uses that the broker remembers."""

import tracemalloc

import pytest

from broker.metadata.change import entity_of
from broker.quota.quota_manager import QuotaManager
from broker.settings.config import BrokerConfig
from broker.wire.errors import ApiError, ErrorCode

MS = 1_000


def manager_of(quotas, **settings):
    manager = QuotaManager(BrokerConfig(**settings))
    manager.use({entity_of(entity): values for entity, values in quotas.items()})
    return manager


def produced(manager, client_id, size, now_ms=MS, user="ANONYMOUS"):
    """Produce `size` bytes; return the throttle time in ms, or None if the client has no quota."""
    meter = manager.meter(client_id, user)
    if meter is None:
        return None
    meter.produced(size, now_ms)
    return meter.throttle_ms


USER, ANY_USER = ("user", "ANONYMOUS"), ("user", None)
APP, ANY_CLIENT = ("client-id", "app"), ("client-id", None)
# The most specific entity first, as in Kafka's documentation.
OF_USER = (USER, APP), (USER, ANY_CLIENT), (USER,)
ORDER = *OF_USER, (ANY_USER, APP), (ANY_USER, ANY_CLIENT), (ANY_USER,), (APP,), (ANY_CLIENT,)


@pytest.mark.parametrize("first", range(len(ORDER)))
def test_the_quota_that_is_most_its_own_holds(first):
    """Each entity's quota is 1,000 times its place in the order, so the throttle time shows which quota holds."""
    manager = manager_of({entity: {"producer_byte_rate": 1_000.0 * (i + 1)} for i, entity in enumerate(ORDER[first:])})
    assert produced(manager, "app", 20_000) == 10_000


@pytest.mark.parametrize(
    "entity", [(("user", "ann"),), (("client-id", "other"),), (("user", "ann"), APP), (USER, ("client-id", "other"))]
)
def test_others_quotas_hold_nobody_back(entity):
    assert produced(manager_of({entity: {"producer_byte_rate": 1.0}}), "app", 1 << 30) is None


@pytest.mark.parametrize("client_id", ["", None])
def test_a_client_without_a_name_has_its_users_quota_only(client_id):
    quotas = {entity: {"producer_byte_rate": 1_000.0} for entity in [(ANY_CLIENT,), (USER, ANY_CLIENT)]}
    assert produced(manager_of(quotas), client_id, 20_000) is None
    assert produced(manager_of(quotas | {(USER,): {"producer_byte_rate": 1_000.0}}), client_id, 20_000) == 10_000


def test_each_client_has_the_default_for_itself():
    manager = manager_of({(ANY_CLIENT,): {"producer_byte_rate": 1_000.0}})
    assert [produced(manager, client_id, 10_000) for client_id in ("a", "b", "a")] == [0, 0, 10_000]


def test_clients_of_one_user_share_what_the_user_has():
    manager = manager_of({(USER,): {"producer_byte_rate": 1_000.0}})
    assert [produced(manager, client_id, 10_000) for client_id in ("a", "b")] == [0, 10_000]
    manager = manager_of({(USER, ANY_CLIENT): {"producer_byte_rate": 1_000.0}})
    assert [produced(manager, client_id, 10_000) for client_id in ("a", "b")] == [0, 0]


def test_each_kind_of_quota_is_looked_up_by_itself():
    manager = manager_of({(USER,): {"consumer_byte_rate": 1.0}, (APP,): {"producer_byte_rate": 1_000.0}})
    assert produced(manager, "app", 20_000) == 10_000


def test_another_quota_holds_for_what_was_used_before():
    manager = manager_of({(APP,): {"producer_byte_rate": 1_000.0}})
    assert produced(manager, "app", 10_000) == 0
    manager.use({(APP,): {"producer_byte_rate": 500.0}})
    assert produced(manager, "app", 0) == 10_000


# --- kinds of quotas ---------------------------------------------------------------------------------------------


def fetcher(**settings):
    return manager_of({(APP,): {"consumer_byte_rate": 1_000.0}}, **settings)


def may_fetch(manager, size, now_ms):
    meter = manager.meter("app")
    return meter.may_fetch(size, now_ms), meter.throttle_ms


def test_a_fetch_over_its_quota_does_not_leave_and_does_not_count():
    manager = fetcher()
    assert may_fetch(manager, 8_000, MS) == (True, 0)
    assert may_fetch(manager, 4_000, MS) == (False, 2_000)
    assert may_fetch(manager, 2_000, MS) == (True, 0)


def test_a_fetch_asks_for_no_more_than_can_ever_leave():
    assert fetcher().meter("app").fetch_max_bytes == 10_000
    assert fetcher(quota_window_num=1).meter("app").fetch_max_bytes == 1
    assert manager_of({(APP,): {"producer_byte_rate": 1.0}}).meter("app").fetch_max_bytes == 2**31 - 1


def test_a_batch_larger_than_all_windows_leaves_when_nothing_else_did_and_is_waited_for():
    manager = fetcher()
    assert may_fetch(manager, 1, MS) == (True, 0)
    assert may_fetch(manager, 50_000, MS) == (False, 40_001)
    assert may_fetch(manager, 50_000, 12_000) == (True, 40_000)
    assert may_fetch(manager, 1, 12_000) == (False, 40_001)


def test_a_share_of_time_holds_back_for_a_window_at_most():
    """The percentage is that of one thread: 100 percent is the whole thread."""
    manager = manager_of({(APP,): {"request_percentage": 10.0}})
    meter = manager.meter("app")
    meter.worked(1_000_000_000, MS)
    assert meter.throttle_ms == 0, "a second in ten"
    meter = manager.meter("app")
    meter.worked(50_000_000, MS)
    assert (meter.throttle_ms, meter.quota) == (500, "request_percentage")
    meter = manager.meter("app")
    meter.worked(5_000_000_000, MS)
    assert meter.throttle_ms == 1_000


def test_a_client_that_takes_too_much_time_is_given_no_records():
    manager = manager_of({(APP,): {"request_percentage": 10.0, "consumer_byte_rate": 1_000.0}})
    manager.meter("app").worked(1_500_000_000, MS)
    assert may_fetch(manager, 100, MS) == (False, 1_000)
    assert may_fetch(manager, 10_000, 20_000) == (True, 0), "what did not leave did not count"


def mutate(manager, partitions, strict, now_ms):
    meter = manager.meter("app")
    try:
        meter.mutate(partitions, strict, now_ms)
    except ApiError as refusal:
        return refusal.code, meter.throttle_ms
    return ErrorCode.NONE, meter.throttle_ms


def test_changes_of_topics_are_refused_to_who_has_a_debt():
    """A request may exceed the quota; the next one waits until that debt is paid (KIP-599)."""
    manager = manager_of({(APP,): {"controller_mutation_rate": 2.0}})
    assert mutate(manager, 32, True, MS) == (ErrorCode.NONE, 0)
    assert mutate(manager, 1, True, MS) == (ErrorCode.THROTTLING_QUOTA_EXCEEDED, 5_000)
    assert mutate(manager, 1, True, 5_999) == (ErrorCode.THROTTLING_QUOTA_EXCEEDED, 1)
    assert mutate(manager, 1, True, 6_000) == (ErrorCode.NONE, 0)


def test_clients_that_know_no_such_refusal_are_held_back_instead():
    manager = manager_of({(APP,): {"controller_mutation_rate": 2.0}})
    assert mutate(manager, 32, False, MS) == (ErrorCode.NONE, 5_000)
    assert mutate(manager, 2, False, MS) == (ErrorCode.NONE, 6_000)


# --- connections -------------------------------------------------------------------------------------------------


def held_ms(manager, address, now_ms=MS):
    over = manager.connected(address, now_ms)
    return over.throttle_ms if over is not None else 0


def test_an_address_has_so_many_connections_a_second():
    manager = manager_of({(("ip", "10.0.0.1"),): {"connection_creation_rate": 2.0}})
    assert [held_ms(manager, "10.0.0.1") for _ in range(20)] == [0] * 20
    assert held_ms(manager, "10.0.0.1") == 500
    assert held_ms(manager, "10.0.0.1") == 500, "one that is refused does not count"
    assert held_ms(manager, "10.0.0.2") == 0


def test_others_have_the_default_each_for_itself():
    quotas = {(("ip", None),): {"connection_creation_rate": 1.0}, (("ip", "::1"),): {"connection_creation_rate": 9.0}}
    manager = manager_of(quotas, quota_window_num=2)
    assert [held_ms(manager, address) for address in ("10.0.0.1", "10.0.0.2", "10.0.0.1")] == [0, 0, 1_000]
    assert [held_ms(manager, "::1") for _ in range(9)] == [0] * 9


def test_an_address_is_one_however_it_is_written():
    manager = manager_of({(("ip", "0:0:0:0:0:0:0:1"),): {"connection_creation_rate": 1.0}}, quota_window_num=2)
    assert [held_ms(manager, "::1") for _ in range(2)] == [0, 1_000]


# --- remembered uses ---------------------------------------------------------------------------------------------


def test_only_so_many_uses_are_remembered():
    manager = manager_of({(ANY_CLIENT,): {"producer_byte_rate": 1_000.0}}, max_quota_clients=2)
    for client_id in ("a", "b", "a", "c"):
        produced(manager, client_id, 10_000)
    assert len(manager) == 2
    assert produced(manager, "a", 1) > 0
    assert produced(manager, "b", 10_000) == 0, "heard of longest ago, it begins anew"


def test_a_use_takes_some_two_kilobytes_however_long_the_name():
    """The description of flakelog.max.quota.clients states this size."""
    manager = manager_of({(ANY_CLIENT,): {"producer_byte_rate": 1_000.0}})
    tracemalloc.start()
    try:
        for n in range(1_200):
            produced(manager, f"client {n % 100}" + "\ufffd" * 32_000, 1, n // 100 * MS)
        assert len(manager) == 100 and tracemalloc.get_traced_memory()[0] < 100 * 4_000
    finally:
        tracemalloc.stop()


def test_uses_that_have_no_weight_left_expire():
    manager = manager_of({(ANY_CLIENT,): {"producer_byte_rate": 1_000.0}})
    for n in range(100):
        produced(manager, f"client {n}", 1, MS)
    produced(manager, "another", 1, MS + 3_600_000)
    assert len(manager) == 1
