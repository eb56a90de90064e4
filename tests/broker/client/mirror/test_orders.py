"""Orders to mirrors, by the records of their topic."""

from broker.client.mirror.orders import Orders, pause_order


def test_a_mirror_pauses_until_its_order_is_taken_back():
    orders = Orders()
    orders.read([(b"eu", pause_order(1)), (b"us", pause_order(2))])
    assert orders.paused == {"eu", "us"}
    orders.read([(b"eu", None), (b"none", None)])
    assert orders.paused == {"us"}


def test_a_value_of_another_program_is_no_order():
    orders = Orders()
    values = b"x", b"[1]", b"{}", b'{"v":9,"state":"paused"}', b'{"v":1,"state":"later"}'
    orders.read((b"eu", value) for value in values)
    orders.read([(None, pause_order(1)), (b"\xff", pause_order(1))])
    assert "eu" not in orders.paused
