"""A hook of MkDocs: put tables of all settings into docs/settings.md, made from the settings' own descriptions."""

import json

from click.testing import CliRunner

from flakelog.cli import main

PAGE = "settings.md"
HEAD = "| setting | default | meaning |\n|---|---|---|\n"


def on_page_markdown(markdown, page, **_):
    """Replace each `<!-- settings: NAME -->` of the page with the table of that name."""
    if page.file.src_uri == PAGE:
        for name, settings in all_settings().items():
            place = f"<!-- settings: {name} -->"
            assert place in markdown, f"{PAGE} has no {place}"
            markdown = markdown.replace(place, HEAD + "".join(map(row, settings)))
    return markdown


def all_settings():
    """Return the settings as `flakelog settings --json` prints them, by scope."""
    printed = CliRunner().invoke(main, ["settings", "--json"], catch_exceptions=False).stdout
    settings = [json.loads(line) for line in printed.splitlines()]
    scopes = ("server", "topic", "spout", "group member", "sink", "topology", "storm", "consumer", "connector")
    return {scope: [each for each in settings if each["scope"] == scope] for scope in scopes}


def row(setting):
    return f"| `{setting['name']}` | {default(setting)} | {sentence(setting['doc'])} |\n"


def default(setting):
    """Return a setting's default as a properties file spells it, and its unit."""
    value, unit = setting["default"], setting["unit"] or ""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return unit if value in (None, "") else f"`{text}` {unit}"


def sentence(doc):
    """Return a description as a sentence that is plain text in Markdown."""
    text = doc[0].upper() + doc[1:] + ("" if doc.endswith(".") else ".")
    return text.replace("<", "&lt;").replace("|", "&#124;").replace("_", "\\_").replace("*", "\\*")
