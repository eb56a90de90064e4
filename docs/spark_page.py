"""A hook of MkDocs: put the tables of all Spark options into docs/spark.md, made from the table in the code."""

from spark_bridge.selection.option_table import KAFKA, SERVERS, TABLE, Use, Verdict

PAGE = "spark.md"
HEAD = "| option | where | default | meaning | the connector |\n|---|---|---|---|---|\n"
SHORT = {Use.READ: "read", Use.STREAM: "stream", Use.WRITE: "write"}


def on_page_markdown(markdown, page, **_):
    """Replace each `<!-- options: NAME -->` of the page with the table of that name."""
    if page.file.src_uri == PAGE:
        for name, options in tables().items():
            place = f"<!-- options: {name} -->"
            assert place in markdown, f"{PAGE} has no {place}"
            markdown = markdown.replace(place, HEAD + "".join(map(row, options)))
    return markdown


def tables():
    """Return the options by kind: those with the connector's meaning, Flakelog's own, Kafka's settings."""
    kafka = [option for option in TABLE if option.name.startswith(KAFKA) and option.name != SERVERS]
    ours = [option for option in TABLE if option.connector is None]
    same = [option for option in TABLE if option not in kafka and option not in ours]
    return {"connector": same, "flakelog": ours, "kafka": kafka}


def row(option):
    cells = (f"`{option.name}`", where(option), option.default, text(option.meaning), theirs(option))
    return f"| {' | '.join(cells)} |\n"


def where(option):
    taken = [SHORT[use] for use in Use if option.verdict(use) is Verdict.TAKEN]
    return "everywhere" if len(taken) == len(Use) else ", ".join(taken) or "nowhere"


def theirs(option):
    if option.connector is None:
        return "has none"
    return text(option.connector) if option.connector else "the same"


def text(words):
    """Return words that are plain text in Markdown."""
    return words.replace("<", "&lt;").replace("|", "&#124;").replace("_", "\\_").replace("*", "\\*")
