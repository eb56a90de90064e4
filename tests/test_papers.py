"""The rules of README, CHANGELOG and docs/ that need no server: lengths, links, and names that exist in the code.

`make docs` checks the rest of the pages, and tests/compat/commands/test_readme.py runs their blocks.
"""

import ast
import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from markdown.extensions.toc import slugify

from flakelog.settings import port_settings
from spark_bridge.selection.option_table import TABLE

ROOT = Path(__file__).resolve().parent.parent
README, CHANGELOG, ARCHITECTURE = ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "docs" / "architecture.md"
RULES = ROOT / "docs" / "rules-of-the-cluster.md"
PAPERS = (
    README, CHANGELOG, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", ROOT / "benchmarks" / "README.md",
    ROOT / "tests" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
)  # fmt: skip
PACKAGES = (
    "benchmarks", "broker", "coordination", "flakelog", "idgen", "partition_manager", "spark_bridge", "spout", "tests"
)  # fmt: skip
README_LINES_MAX = 200
ENTRY_WORDS_MAX = 25
ROAD = re.compile(r"^    transport\.doRead -> .*\n(?:     .*\n)*", re.MULTILINE)  # a Produce's, as file.function


def names(paths):
    return [path.relative_to(ROOT).as_posix() for path in paths]


def prose_of(page):
    """Return a page without its fenced and its indented blocks."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"^(    .*\n)+", "", text, flags=re.MULTILINE)


def spans_of(page):
    """Return the texts between backticks."""
    return re.findall(r"`([^`\n]+)`", prose_of(page))


# --- programs on the pages ---------------------------------------------------------------------------------------


def programs_of(page):
    """Return (the text before it, the program) of each Python block."""
    text = page.read_text()
    return [(text[: block.start()], block[1]) for block in re.finditer(r"^```python\n(.*?)^```$", text, re.M | re.S)]


def test_each_program_of_the_tutorial_says_what_to_save_it_as():
    programs = programs_of(ROOT / "docs" / "tutorial.md")
    for before, program in programs:
        name = re.match(r"# (\w+\.py)\n", program)
        assert name, f"a program begins with its name: {program[:60]!r}"
        sentence = " ".join(before.rpartition("\n\n")[0].rpartition("\n\n")[2].split())
        assert f"Save it as `{name[1]}`" in sentence, sentence
    assert len(programs) >= 6


def test_the_tutorials_test_says_how_to_run_it():
    ((before, _),) = (program for program in programs_of(ROOT / "docs" / "tutorial.md") if "def test_" in program[1])
    sentence = " ".join(before[-400:].split())
    assert "`pip install pytest`" in sentence and "`python -m pytest test_billing.py`" in sentence


@pytest.mark.parametrize("package", ["duckdb", "polars"])
def test_a_page_that_uses_a_package_we_do_not_bring_says_how_to_get_it(package):
    pages = [page for page in PAPERS if any(f"import {package}" in program for _, program in programs_of(page))]
    assert pages
    for page in pages:
        assert re.search(rf"`pip install [a-z ]*{package}", prose_of(page)), f"{page.name} uses {package}"


# --- README and CHANGELOG ----------------------------------------------------------------------------------------


def test_the_readme_is_short():
    assert len(README.read_text().splitlines()) <= README_LINES_MAX, "move what it explains to docs/"


def test_the_readme_begins_with_its_two_commands():
    beginning, _, _ = README.read_text().partition("\n## ")
    assert re.findall(r"^    (make \w+)", beginning, re.MULTILINE) == ["make demo", "make test"]


@pytest.mark.parametrize("page", (README, ARCHITECTURE), ids=("README", "architecture"))
def test_the_road_of_a_produce_names_functions_that_exist(page):
    road = ROAD.search(page.read_text())
    stations = re.findall(r"(\w+)\.(\w+)", road[0])
    assert len(stations) >= 10
    for module, function in stations:
        files = (ROOT / "broker").rglob(f"{module}.py")
        assert any(f"def {function}(" in file.read_text() for file in files), f"{module}.{function}"


def test_readme_and_architecture_show_the_same_road():
    assert ROAD.search(README.read_text())[0] == ROAD.search(ARCHITECTURE.read_text())[0]


def test_the_changelog_has_three_kinds_of_entries():
    text = CHANGELOG.read_text()
    assert re.findall(r"^## (.*)", text, re.MULTILINE)[0] == "Unreleased"
    kinds = set(re.findall(r"^### (.*)", text, re.MULTILINE))
    assert kinds == {"Added", "Changed", "Fixed"}


def test_an_entry_of_the_changelog_is_one_short_line():
    _, _, entries = CHANGELOG.read_text().partition("\n## ")
    for line in entries.splitlines()[1:]:
        if line.startswith("|"):  # the table of old and new spellings
            continue
        assert not line or line.startswith(("- ", "#")), f"an entry is one line, beginning with '- ': {line}"
        words = line.removeprefix("- ").split()
        assert len(words) <= ENTRY_WORDS_MAX, f"{len(words)} words, {ENTRY_WORDS_MAX} are the limit: {line}"


# --- links and names ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAPERS, ids=names(PAPERS))
def test_a_link_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose_of(page)):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        file_path = (page.parent / file).resolve() if file else page
        assert file_path.exists(), f"{target} leads nowhere"
        if anchor and file_path.name != "api.md":  # its anchors are made of docstrings; `make docs` checks them
            assert anchor in anchors_of(file_path), f"{target}: that page has no such heading"


def anchors_of(page):
    """Return the anchors that the site's generator makes of the headings."""
    return {slugify(heading, "-") for heading in re.findall(r"^#+ (.*)", prose_of(page), re.MULTILINE)}


def test_the_first_page_of_the_site_leads_to_all_others():
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert set(re.findall(r"\]\((\w[\w-]*\.md)\)", (ROOT / "docs" / "index.md").read_text())) == pages


@pytest.mark.parametrize("page", PAPERS, ids=names(PAPERS))
def test_a_path_exists(page):
    """A path is named from the top, or from the page's own directory."""
    for text in spans_of(page):
        if re.fullmatch(r"(?:[a-z_]+/)+(?:[\w.]+\.\w+)?", text) and text.split("/")[0] in TOPS:
            assert (ROOT / text).exists() or (page.parent / text).exists(), f"{text} does not exist"


def test_each_line_of_the_page_of_security_names_a_test_that_exists():
    page = ROOT / "docs" / "security.md"
    named = {text for text in spans_of(page) if text.startswith("test_")}
    source = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert named and not named - set(re.findall(r"def (test_\w+)\(", source))
    rows = [line for line in page.read_text().splitlines() if line.startswith("| ") and "| test |" not in line]
    assert [line for line in rows if "`test_" not in line] == []


TOPS = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")} - {"build"}


@pytest.mark.parametrize("page", PAPERS, ids=names(PAPERS))
def test_a_setting_of_ours_exists(page, setting_names):
    for text in spans_of(page):
        name = text.partition("=")[0]
        if re.fullmatch(r"flakelog(\.[a-z]+){2,}(\.\*)?", name) and not name.startswith("flakelog.testing"):
            begins = name.removesuffix("*")
            is_prefix = begins != name and any(setting.startswith(begins) for setting in setting_names)
            assert name in setting_names or is_prefix, f"there is no setting {name}"


@pytest.fixture(scope="module")
def setting_names():
    """The names of all settings, from the hook that makes docs/settings.md."""
    spec = spec_from_file_location("settings_page", ROOT / "docs" / "settings_page.py")
    hook = module_from_spec(spec)
    spec.loader.exec_module(hook)
    return {setting["name"] for settings in hook.all_settings().values() for setting in settings} | {*port_settings()}


def test_the_page_of_settings_has_all_of_them(setting_names):
    listed = {"log.segment.bytes", "segment.bytes", "flakelog.spout.max.attempts", "topology.max.spout.pending"}
    assert listed <= setting_names


@pytest.mark.parametrize("package", ["broker", "flakelog"])
def test_the_page_of_the_architecture_has_each_folder_of_a_package(package):
    folders = {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}
    rows = re.findall(r"^\| (`\w+/[^|]*) \|", ARCHITECTURE.read_text(), re.MULTILINE)
    assert folders <= set(re.findall(rf"`{package}/(\w+)/", " ".join(rows)))


def rows_of_steps():
    """Return the (files, names) of the steps in the tables of docs/architecture.md."""
    rows = re.findall(r"^\| \d+\. .* \| (.*) \| (.*) \|$", ARCHITECTURE.read_text(), re.MULTILINE)
    return [[re.findall(r"`([^`]+)`", cell) for cell in row] for row in rows]


@pytest.mark.parametrize("files, defined", rows_of_steps(), ids=lambda texts: "-".join(texts))
def test_a_step_names_what_its_files_define(files, defined):
    """Each class, method and function that a step names is defined in one of the files beside it."""
    definitions = set().union(*(definitions_of((ROOT / file)) for file in files))
    assert set(defined) <= definitions, f"{', '.join(files)}: no {', '.join(set(defined) - definitions)}"


def definitions_of(path):
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            names.add(node.name)
            methods = [member for member in getattr(node, "body", ()) if isinstance(member, ast.FunctionDef)]
            names |= {f"{node.name}.{method.name}" for method in methods}
    return names


def test_no_program_cites_a_paper_that_the_repository_lacks():
    papers = {page.name for page in PAPERS}
    for program in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        cited = set(re.findall(r"(?<![\w/-])[a-z]+\.md\b(?:,? (?:section|theorem)s?)?", program.read_text()))
        assert cited <= papers, f"{program.relative_to(ROOT)} cites {', '.join(cited - papers)}"


# --- the rules of the cluster ------------------------------------------------------------------------------------

def rules_on_the_page():
    """Return the text of each rule by its id."""
    return dict(re.findall(r"^\*\*([EIRSTW]\d)\. (.*?)(?=^\*\*|^## |\Z)", RULES.read_text(), re.MULTILINE | re.DOTALL))


def cited_rules(path):
    """Return the ids of the rules that a program cites, as in "rule W3", "rules R1 to R3, E4", "(W4)" or "E1: ..."."""
    return set(re.findall(r"\b[EIRSTW][1-9]\b", path.read_text()))


def test_each_rule_that_code_or_tests_cite_stands_on_the_page_of_the_rules():
    places = "broker", "coordination", "flakelog", "tests/broker", "tests/coordination", "tests/simulation"
    programs = [program for place in places for program in (ROOT / place).rglob("*.py")]
    citing = {program: cited_rules(program) - rules_on_the_page().keys() for program in programs}
    unknown = {program.relative_to(ROOT).as_posix(): cited for program, cited in citing.items() if cited}
    assert not unknown and len(rules_on_the_page()) == 30


@pytest.mark.parametrize("rule", rules_on_the_page())
def test_a_rule_names_a_test_that_cites_it(rule):
    named = [ROOT / name for name in re.findall(r"`(tests/[^`]+)`", rules_on_the_page()[rule])]
    assert any(rule in cited_rules(path) for path in named)


def test_the_page_of_spark_has_all_options():
    """docs/spark_page.py divides the table in the code among the page's places."""
    spec = spec_from_file_location("spark_page", ROOT / "docs" / "spark_page.py")
    hook = module_from_spec(spec)
    spec.loader.exec_module(hook)
    tables = hook.tables()
    page = (ROOT / "docs" / hook.PAGE).read_text()
    assert all(f"<!-- options: {name} -->" in page for name in tables)
    assert sorted(option.name for options in tables.values() for option in options) == sorted(
        option.name for option in TABLE
    )
    assert all(len(hook.row(option).split(" | ")) == 5 for options in tables.values() for option in options)
