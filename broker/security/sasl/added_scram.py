"""`--add-scram`: a user's credential on the command line, in the syntax of Kafka's `kafka-storage format`.

    SCRAM-SHA-512=[name=ada,password-file=/etc/flakelog/ada]
    SCRAM-SHA-256=[name=ada,iterations=8192,salt="MWx2NHBkbmc0ZndlMWhucQ==",password=ada-secret]
    SCRAM-SHA-256=[name=ada,salt="...",saltedpassword="..."]

`password-file` is not Kafka's: it keeps the password out of the list of processes. Values are in base64 where Kafka has
them so. A value ends at the next comma. An error shows no secret.
"""

import re
from base64 import b64decode
from collections.abc import Callable
from typing import NamedTuple

from broker.security.sasl.scram import DIGESTS
from broker.security.sasl.scram_keys import ITERATIONS_MIN, ScramKeys, keys_of, salted, wrong_iterations

_FORM = "must be MECHANISM=[name=USER,password-file=FILE], as in SCRAM-SHA-512=[name=ada,password-file=ada.txt]"
_NAMES = ("name", "salt", "iterations", "password", "saltedpassword", "password-file")


class AddedScram(NamedTuple):
    """A credential to add. `shows_password` is True if the command line has the password."""

    user: str
    mechanism: str
    salt: bytes
    iterations: int
    keys: ScramKeys
    shows_password: bool


def parse_added_scram(text: str, read: Callable[[str], str], random_salt: Callable[[], bytes]) -> AddedScram:
    """Parse the value of `--add-scram`. `read` returns the text of a file. Raise ValueError or OSError."""
    match = re.fullmatch(r"\s*([^=\s]+)=\[(.*)\]\s*", text, re.DOTALL)
    if match is None:
        raise ValueError(_FORM)
    mechanism, parts = match[1], dict(_part(part) for part in match[2].split(","))
    if mechanism not in DIGESTS:
        raise ValueError(f"{mechanism} is no mechanism of SCRAM: give {' or '.join(DIGESTS)}")
    unknown = sorted(parts.keys() - {*_NAMES})
    if unknown:
        raise ValueError(f"{', '.join(unknown)} is not known there; {', '.join(_NAMES)} are")
    if not parts.get("name"):
        raise ValueError(f"it names no user; {_FORM}")
    given = [name for name in ("password", "password-file", "saltedpassword") if name in parts]
    if len(given) != 1:
        raise ValueError(f"it must have one of password-file, password and saltedpassword; {_FORM}")
    if given == ["saltedpassword"] and "salt" not in parts:
        raise ValueError("saltedpassword needs the salt that it was made with")
    iterations = _iterations(parts.get("iterations", str(ITERATIONS_MIN)))
    salt = _decoded("salt", parts["salt"]) if "salt" in parts else random_salt()
    if given == ["saltedpassword"]:
        salted_password = _decoded("saltedpassword", parts["saltedpassword"])
    else:
        password = parts["password"] if given == ["password"] else read(parts["password-file"]).rstrip("\r\n")
        if not password:
            raise ValueError(f"the password of {parts['name']} is empty")
        salted_password = salted(password, salt, iterations, mechanism)
    keys = keys_of(salted_password, mechanism)
    return AddedScram(parts["name"], mechanism, salt, iterations, keys, given != ["password-file"])


def _part(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign:
        raise ValueError(f"a part of it has no equals sign; {_FORM}")
    is_quoted = len(value) >= 2 and value[0] == value[-1] == '"'
    return name.strip(), value[1:-1] if is_quoted else value


def _iterations(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"iterations={text}: must be a whole number")
    wrong = wrong_iterations(int(text))
    if wrong is not None:
        raise ValueError(f"iterations={text}: {wrong}")
    return int(text)


def _decoded(name: str, text: str) -> bytes:
    try:
        decoded = b64decode(text, validate=True)
    except ValueError:
        decoded = b""
    if not decoded:
        raise ValueError(f"{name} must be in base64")
    return decoded
