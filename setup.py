"""The long description of the package: README.md, whose links are of use outside the repository. setup.cfg has the
rest.
"""

import re
from configparser import ConfigParser
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent
LINK = re.compile(r"(!?)\[([^\]]+)\]\((?!\w+://)([^)\s]+)\)")
NOTE = "\nThe files named here are in the source distribution.\n"


def source_address(text: str) -> str:
    """Return the address of the repository's files (`Source` of project_urls in setup.cfg), '' if none is given."""
    config = ConfigParser()
    config.read_string(text)
    urls = (line.partition("=") for line in config.get("metadata", "project_urls", fallback="").splitlines())
    return {name.strip(): address.strip() for name, _, address in urls}.get("Source", "")


def long_description(readme: str, address: str) -> str:
    """Return the README with absolute links, or without an address with the names of the files in their place."""

    def absolute(link: re.Match[str]) -> str:
        image, text, file = link.groups()
        if address:
            return f"{image}[{text}]({address.rstrip('/')}/{file})"
        return f"`{file}`" if text == file else f"{text} (`{file}`)"

    return LINK.sub(absolute, readme) + ("" if address else NOTE)


if __name__ == "__main__":
    readme, settings = ((HERE / name).read_text(encoding="utf-8") for name in ("README.md", "setup.cfg"))
    setup(long_description=long_description(readme, source_address(settings)))
