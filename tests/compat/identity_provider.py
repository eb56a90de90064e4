"""An identity provider for OAUTHBEARER: its keys by HTTP, its token endpoint, and the settings of a server for both."""

import json
import threading
import time
from base64 import b64encode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl

from broker.security.sasl.exchange import Rejected
from broker.security.sasl.token_rules import TokenRules
from broker.security.sasl.web_keys import parse_keys
from broker.security.sasl.web_token import read_token
from tests.broker.web_tokens import SigningKey, key_set

ISSUER, AUDIENCE = "https://id.example", "kafka"
CLIENT_ID, CLIENT_SECRET = "ada", "marked-client-secret"
OAUTH_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
LOGIN_HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
CLIENT_ASSERTION = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
RETRIEVER = "sasl.oauthbearer.jwt.retriever.class"
BY_JWT_BEARER = {RETRIEVER: "org.apache.kafka.common.security.oauthbearer.JwtBearerJwtRetriever"}
VALIDATOR = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"


class IdentityProvider:
    """An HTTP server with a key set, and the tokens that it signs.

    `/token` gives a client that proves its secret a token of `lifetime_s`; it refuses all of them if `is_refusing`.
    An assertion by `client_key` proves a client too. `forms` has the requests for tokens that it took.
    """

    def __init__(self):
        provider = self

        class Answer(BaseHTTPRequestHandler):
            def do_GET(self):
                self._answer(200, key_set(provider.key))

            def do_POST(self):
                form = self.rfile.read(int(self.headers["Content-Length"])).decode()
                self._answer(*provider.answer(self.path, self.headers["Authorization"], form))

            def _answer(self, status, text):
                self.send_response(status)
                if status == 307:
                    self.send_header("Location", f"{provider.address}/token")
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_):
                pass

        self.key = SigningKey()
        self.client_key = SigningKey("RS256", key_id=None)
        self.lifetime_s = 600
        self.is_refusing = False
        self.forms = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        self.url, self.token_url = f"{self.address}/keys", f"{self.address}/token"

    def answer(self, path, login, form):
        """Return status and body of the answer to a request for a token."""
        if path == "/moved":
            return 307, ""
        self.forms.append(form)
        right = "Basic " + b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()
        if self.is_refusing or not (login == right or login is None and self._is_asserted(dict(parse_qsl(form)))):
            return 401, json.dumps({"error": "invalid_client"})
        answer = {"access_token": self.token(), "token_type": "Bearer", "expires_in": self.lifetime_s}
        return 200, json.dumps(answer)

    def _is_asserted(self, fields):
        """Return True for an assertion of the client's: RFC 7523, sections 2.1 and 2.2."""
        if fields["grant_type"] == JWT_BEARER:
            assertion = fields["assertion"]
        else:
            by_client = fields.get("client_id", CLIENT_ID) == CLIENT_ID
            if not by_client or fields.get("client_assertion_type") != CLIENT_ASSERTION:
                return False
            assertion = fields["client_assertion"]
        keys, rules = parse_keys(key_set(self.client_key)), TokenRules([self.token_url], CLIENT_ID)
        try:
            return read_token(assertion, lambda _: keys, rules, int(time.time() * 1_000)).user == CLIENT_ID
        except Rejected:
            return False

    def token(self, key=None, **claims):
        now = int(time.time())
        standard = {"sub": "ada", "iss": ISSUER, "aud": [AUDIENCE], "iat": now, "exp": now + self.lifetime_s}
        return (key or self.key).token(standard | claims)

    def close(self):
        self._server.shutdown()
        self._server.server_close()


def assertion_settings(provider, key_file):
    """Return the settings of a client that proves itself by an assertion, with the private key in this file."""
    key_file.write_text(provider.client_key.pem())
    prefix = "sasl.oauthbearer.assertion"
    return {
        "sasl.oauthbearer.token.endpoint.url": provider.token_url,
        f"{prefix}.private.key.file": str(key_file),
        f"{prefix}.claim.iss": CLIENT_ID,
        f"{prefix}.claim.sub": CLIENT_ID,
        f"{prefix}.claim.aud": provider.token_url,
        f"{prefix}.claim.jti.include": "true",
    }


def rules_of_tokens(url, prefix):
    """Return the settings of a listener that takes tokens; `prefix` is listener.name.NAME."""
    prefix = f"{prefix}.oauthbearer.sasl"
    return {
        f"{prefix}.oauthbearer.jwks.endpoint.url": url,
        f"{prefix}.oauthbearer.expected.audience": AUDIENCE,
        f"{prefix}.oauthbearer.expected.issuer": ISSUER,
        f"{prefix}.server.callback.handler.class": VALIDATOR,
    }
