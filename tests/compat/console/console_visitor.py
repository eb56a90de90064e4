"""A visitor of the web console: a browser's requests, without a browser."""

import http.client
import re
from urllib.parse import urlencode

from tests.patience import SECONDS


class Visitor:
    """It keeps cookies, and sends an Origin with each POST."""

    def __init__(self, address):
        self.address = address
        self.cookies = {}
        self.headers = {}

    def ask(self, method, path, body=None, **headers):
        connection = http.client.HTTPConnection(self.address, timeout=SECONDS)
        sent = dict(self.headers)
        if self.cookies:
            sent["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        if method == "POST":
            sent |= {"Origin": f"http://{self.address}", "Content-Type": "application/x-www-form-urlencoded"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        sent = {name: value for name, value in sent.items() if value is not None}
        connection.request(method, path, None if body is None else urlencode(body, doseq=True), sent)
        answer = connection.getresponse()
        for each in answer.msg.get_all("Set-Cookie", []):
            name, _, value = each.partition(";")[0].partition("=")
            self.cookies[name] = value
        text = answer.read().decode()
        connection.close()
        return answer, text

    def get(self, path, **headers):
        answer, text = self.ask("GET", path, **headers)
        return answer.status, text

    def post(self, path, body, **headers):
        """Send a form, and follow a redirect to the answer that was kept, as browsers do."""
        answer, text = self.ask("POST", path, body, **headers)
        target = answer.getheader("Location", "")
        if answer.status == 303 and target.startswith("/console/kept/"):
            return self.get(target, **{name: value for name, value in headers.items() if name != "Origin"})
        return answer.status, text

    def csrf(self, page="/console/do/create-topic"):
        """Return the token in the forms of this visitor's pages."""
        return re.search(r'name="csrf" value="(\w+)"', self.get(page)[1])[1]

    def do(self, action, **fields):
        """Ask for an action, and return the (status, text) of the page that asks for confirmation."""
        return self.post(f"/console/do/{action}", {"csrf": self.csrf()} | fields)

    def confirm(self, action, **fields):
        """Do an action as confirmed; return (status, text)."""
        return self.do(action, **fields, confirmed="yes")
