"""Names and messages of others, as lines of the log and errors may show them."""

NAME_CHARACTERS_MAX = 100
MESSAGE_CHARACTERS_MAX = 300


def quoted(name: str) -> str:
    """Return a name in quotes, in printable ASCII and shortened, so that a client cannot forge a line of the log."""
    return _quoted(name, NAME_CHARACTERS_MAX)


def quoted_message(text: str) -> str:
    """Return an error message of another program in quotes, as `quoted` does; it may be longer than a name."""
    return _quoted(text, MESSAGE_CHARACTERS_MAX)


def _quoted(text: str, characters_max: int) -> str:
    """Return the text in quotes; a long one ends after its last whole word, if that is in the second half."""
    if len(text) <= characters_max:
        return ascii(text)
    words_end = text.rfind(" ", characters_max // 2, characters_max + 1)
    return f"{ascii(text[: characters_max if words_end < 0 else words_end])}..."


def without_password(user: str, mechanism: str) -> str:
    """Return what it means that the user of the brokers of a cluster has no password, and the way out."""
    return (
        f"brokers log in to each other as {quoted(user)}, which has no {mechanism} password: each login from now on is "
        "refused, and no broker can start. Set the password that their settings have (flakelog user set), or start "
        "a broker with --add-scram"
    )
