"""A hook of MkDocs: put tables of all settings into docs/settings.md, made from the settings' own descriptions."""

from broker.config import TopicConfig
from flakelog.settings import CONFIGS
from idgen.config import settings_of
from partition_manager.config import SpoutConfig
from spout.config import TopologyConfig

PAGE = "settings.md"
TABLES = {"server": CONFIGS, "topic": (TopicConfig,), "spout": (SpoutConfig,), "topology": (TopologyConfig,)}
HEAD = "| setting | default | meaning |\n|---|---|---|\n"


def on_page_markdown(markdown, page, **_):
    """Replace each `<!-- settings: NAME -->` of the page with the table of that name."""
    if page.file.src_uri == PAGE:
        for name, configs in TABLES.items():
            place = f"<!-- settings: {name} -->"
            assert place in markdown, f"{PAGE} has no {place}"
            markdown = markdown.replace(place, table(configs))
    return markdown


def table(configs):
    """Return a Markdown table with one row for each setting, by name."""
    settings = sorted((each for config in configs for each in settings_of(config)), key=lambda each: each.name)
    return HEAD + "".join(
        f"| `{each.name}` | {default(each)} | {sentence(each.doc)} |\n" for each in settings
    )


def default(each):
    """Return a setting's default as a properties file spells it, and its unit."""
    text = str(each.default).lower() if isinstance(each.default, bool) else str(each.default)
    return each.unit or "" if each.default is None or not text else f"`{text}` {each.unit or ''}"


def sentence(doc):
    """Return a description as a sentence that is plain text in Markdown."""
    text = doc[0].upper() + doc[1:] + ("" if doc.endswith(".") else ".")
    return text.replace("<", "&lt;").replace("|", "&#124;").replace("_", "\\_").replace("*", "\\*")
