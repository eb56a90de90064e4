"""franz-go behind a small face: a Go client that can be told how new an API's version it may speak.

    with stock_go() as go:
        go.ask("produce", address=server.address, versions={0: 3, ...}, topic="t", values=["a"])    # ClientError

What can be asked stands in `go/stock.go`. `make stock` builds it, where Go is there.
"""

import re
from pathlib import Path

from tests.compat.stock_process import StockProcess

HERE = Path(__file__).parent / "go"
PROGRAM = HERE / "target" / "stock"


def stock_go():
    return StockProcess([PROGRAM])


def missing():
    """Why franz-go cannot be tried here; None when it can."""
    return None if PROGRAM.exists() else "franz-go is not there: `make stock` builds it where Go is installed"


def version():
    (found,) = re.findall(r"^\s+github\.com/twmb/franz-go v(\S+)$", (HERE / "go.mod").read_text(), re.MULTILINE)
    return found
