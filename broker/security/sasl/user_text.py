"""Names that clients send, as lines of the log may show them."""

SHOWN_CHARACTERS = 100


def quoted(name: str) -> str:
    """Return a name in quotes, in printable ASCII and shortened, so that a client cannot forge a line of the log."""
    text = ascii(name[:SHOWN_CHARACTERS])
    return text if len(name) <= SHOWN_CHARACTERS else f"{text}..."
