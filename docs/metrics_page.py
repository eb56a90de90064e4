"""A hook of MkDocs: put tables of all metrics into docs/metrics.md, made from the table that the collectors use."""

from flakelog.metric_table import CLIENTS, MIRROR, PROCESSES, REPLICATION, SERVER, TOPOLOGY

PAGE = "metrics.md"
HEAD = "| metric | type | labels | meaning |\n|---|---|---|---|\n"
TABLES = {
    "server": SERVER,
    "replication": REPLICATION,
    "processes": PROCESSES,
    "topology": TOPOLOGY,
    "mirror": MIRROR,
    "clients": CLIENTS,
}


def on_page_markdown(markdown, page, **_):
    """Replace each `<!-- metrics: NAME -->` of the page with the tables of that name."""
    if page.file.src_uri == PAGE:
        for name in TABLES:
            place = f"<!-- metrics: {name} -->"
            assert place in markdown, f"{PAGE} has no {place}"
            markdown = markdown.replace(place, tables(name))
    return markdown


def tables(name):
    """Return the tables of one process, each under its heading."""
    sections = TABLES[name]
    return "\n".join(f"### {title}\n\n{HEAD}{''.join(map(row, rows))}" for title, rows in sections.items())


def row(metric):
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind} | {labels} | {text(metric.meaning)}. |\n"


def text(words):
    """Return words that are plain text in Markdown."""
    return words.replace("<", "&lt;").replace("|", "&#124;").replace("_", "\\_").replace("*", "\\*")
