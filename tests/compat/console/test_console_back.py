"""The browser's Back and Reload after an action of the web console show pages, and never ask to send a form again."""

from tests.compat.console import test_console_browser as pages

# A server with something for each page.
client, server = pages.client, pages.server


def test_back_and_reload_never_send_a_form_again(open_page, client, allowed):
    allowed.append("400 (Bad Request)")
    client.create_topic("once")
    page = open_page("/console/do/send-message?topic=once")
    page.get_by_label("Partition").fill("1")
    page.get_by_role("button", name="Send…").click()
    page.get_by_label("Partition").fill("0")
    page.get_by_role("button", name="Send…").click()
    page.get_by_role("button", name="Send it").click()
    page.get_by_role("heading", name="Done").wait_for()
    page.reload()
    assert "once-0, offset 0" in page.get_by_role("status").inner_text()
    page.go_back()
    page.get_by_role("heading", name="Send a message?").wait_for()
    page.go_back()
    assert "once has partitions 0 to 0, not 1" in page.get_by_role("alert").inner_text()
    page.go_forward()
    page.get_by_role("button", name="Send it").wait_for()
    assert client.find_offset("once", 0, -1) == 1
