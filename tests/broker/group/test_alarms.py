"""Alarms: one timing wheel for all timers of all groups."""

from broker.group.alarms import AlarmClock
from broker.now import Now


def test_an_alarm_rings_once_at_its_moment():
    clock, rung = AlarmClock(), []
    alarm = clock.alarm(lambda now: rung.append(now.ms))
    alarm.set(10)
    for ms in (9, 10, 11, 500):
        clock.tick(Now(ms, 0))
    assert rung == [10]
    assert clock.next_deadline_ms() is None


def test_an_alarm_set_anew_forgets_its_former_moment():
    clock, rung = AlarmClock(), []
    alarm = clock.alarm(lambda now: rung.append(now.ms))
    alarm.set(10)
    alarm.set(20)
    clock.tick(Now(10, 0))
    assert rung == []
    clock.tick(Now(20, 0))
    assert rung == [20]


def test_an_alarm_may_put_off_or_clear_another_of_the_same_moment():
    """The end of a rebalance renews sessions that would have expired at the same moment."""
    clock, rung = AlarmClock(), []
    cleared = clock.alarm(lambda now: rung.append("cleared"))
    put_off = clock.alarm(lambda now: rung.append("put off"))

    def ends(now):
        rung.append("rebalance")
        cleared.clear()
        put_off.set(now.ms + 5)

    clock.alarm(ends).set(10)
    cleared.set(10)
    put_off.set(10)
    clock.tick(Now(10, 0))
    assert rung == ["rebalance"]
    clock.tick(Now(15, 0))
    assert rung == ["rebalance", "put off"]
