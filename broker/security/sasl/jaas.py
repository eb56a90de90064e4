"""JAAS text, as `listener.name.NAME.MECHANISM.sasl.jaas.config` and clients' `sasl.jaas.config` have it (KIP-85).

    org.apache.kafka.common.security.plain.PlainLoginModule required user_ada="a secret";

Words, quotes and comments are read as Kafka reads them. An error never shows a value, because values are passwords.
"""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

FLAGS = ("required", "requisite", "sufficient", "optional")
_FORM = 'must be MODULE required NAME="VALUE" ...;'
_TOKEN = re.compile(
    r"""(?P<space>[\x00-\x20]+|/\*.*?(?:\*/|\Z)|/[^\r\n]*)
    |(?P<mark>[;=])
    |(?P<quoted>"(?:[^"\\\r\n]|\\.)*(?:"|(?=[\r\n])|\Z)|'(?:[^'\\\r\n]|\\.)*(?:'|(?=[\r\n])|\Z))
    |(?P<word>[^\x00-\x20;="'/]+)""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\([0-3]?[0-7]{1,2}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v"}


class LoginModule(NamedTuple):
    """An entry of JAAS text: the Java class that logs in, and its options."""

    name: str
    flag: str
    options: Mapping[str, str]

    @property
    def class_name(self) -> str:
        """Return the class without its package: PlainLoginModule."""
        return self.name.rpartition(".")[2]


def parse_jaas(text: str) -> LoginModule:
    """Parse JAAS text of one login module. Raise ValueError, which gives the right form."""
    modules = list(_modules(text))
    if len(modules) != 1:
        raise ValueError(f"must have one login module, and has {len(modules)}; {_FORM}")
    return modules[0]


def _modules(text: str) -> Iterator[LoginModule]:
    tokens = _tokens(text)
    for kind, name in tokens:
        if kind == "mark":
            raise ValueError(f"a login module must stand before {name}; {_FORM}")
        kind, flag = next(tokens, ("", ""))
        if kind in ("", "mark"):
            raise ValueError(f"no control flag stands behind {name}; {_FORM}")
        if flag.lower() not in FLAGS:
            raise ValueError(f"behind {name} must stand one of {', '.join(FLAGS)}")
        yield LoginModule(name, flag.lower(), dict(_options(tokens)))


def _options(tokens: Iterator[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the options of a module up to its semicolon."""
    for kind, name in tokens:
        if (kind, name) == ("mark", ";"):
            return
        if kind == "mark" or next(tokens, ("", "")) != ("mark", "="):
            raise ValueError(f"an option has no = behind its name, or its value has no quotes; {_FORM}")
        kind, value = next(tokens, ("", ""))
        if kind in ("", "mark"):
            raise ValueError(f"option {name} has no value; {_FORM}")
        yield name, value
    raise ValueError(f"no semicolon ends it; {_FORM}")


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        assert match is not None, "each character begins a token"
        at = match.end()
        kind = match.lastgroup or ""
        if kind == "quoted":
            yield kind, _unquoted(match[0])
        elif kind != "space":
            yield kind, match[0]


def _unquoted(token: str) -> str:
    quote = token[0]
    inner = token[1:-1] if len(token) > 1 and token.endswith(quote) else token[1:]
    return _ESCAPE.sub(_character, inner)


def _character(match: re.Match[str]) -> str:
    code = match[1]
    return chr(int(code, 8)) if code[0] in "01234567" else _ESCAPED.get(code, code)
