"""franz-go behind a small interface: a Go client whose newest version of each API can be set.

    with stock_go() as go:
        go.ask("produce", address=server.address, versions={0: 3, ...}, topic="t", values=["a"])    # ClientError

`go/stock.go` lists the calls. `make stock` builds it if Go is installed.
"""

import re
from pathlib import Path

from tests.compat.stock_process import StockProcess

HERE = Path(__file__).parents[1] / "go"
PROGRAM = HERE / "target" / "stock"


def stock_go():
    return StockProcess([PROGRAM])


def missing():
    """Return why franz-go cannot be tested here, or None if it can."""
    return None if PROGRAM.exists() else "franz-go is not there: `make stock` builds it where Go is installed"


def version():
    (release,) = re.findall(r"^\s+github\.com/twmb/franz-go v(\S+)$", (HERE / "go.mod").read_text(), re.MULTILINE)
    return release
