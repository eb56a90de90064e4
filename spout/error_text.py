"""Exceptions of user code as text for logs, dead letters and figures.

An exception may have a text that raises when it is made, that no UTF-8 can hold (a file name read with
`surrogateescape`), or that is as large as the data it quotes. None of these may keep its message unsettled.
"""

from traceback import format_exception

CHARACTERS_MAX = 10_000  # of an error's text: far more than a reader needs
TRACEBACK_CHARACTERS_MAX = 50_000


def error_text(error: BaseException) -> str:
    """Return the exception as its type's name, ": " and its text."""
    return f"{type(error).__name__}: {bare_text(error)}"


def bare_text(error: BaseException) -> str:
    """Return the exception's text, or why it has none."""
    try:
        text = str(error)
    except Exception as raised:
        return f"its text cannot be made, because of a {type(raised).__name__}"
    return printable(text, CHARACTERS_MAX)


def traceback_of(error: BaseException) -> str:
    """Return the exception with its traceback, which Python makes for every exception."""
    return printable("".join(format_exception(error)), TRACEBACK_CHARACTERS_MAX)


def printable(text: str, limit: int = CHARACTERS_MAX) -> str:
    """Return the text as UTF-8 can hold it; of a text longer than `limit`, only the beginning and the end."""
    if len(text) > limit:
        half = limit // 2
        text = f"{text[:half]} ... ({len(text) - 2 * half:,} characters left out) ... {text[-half:]}"
    return text.encode(errors="backslashreplace").decode()
