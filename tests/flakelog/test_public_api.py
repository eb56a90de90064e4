"""The names that users import from `flakelog`: each is there, explains itself, and raises errors of one hierarchy."""

import inspect
import pydoc
import re
import subprocess
import sys

import pytest

import flakelog
from broker.version import VERSION
from flakelog import errors
from tests.test_tidy import ROOT


def public_members(cls):
    """Return the methods and properties that users call, without those of Python's own classes."""
    ours = [base for base in cls.__mro__ if base.__module__.split(".")[0] not in ("builtins", "typing", "enum")]
    return {
        name: member
        for base in reversed(ours)
        for name, member in vars(base).items()
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, (property, classmethod)))
    }


def test_the_version_is_public():
    assert flakelog.__version__ == VERSION


def test_help_shows_each_public_name():
    text = pydoc.render_doc(flakelog, renderer=pydoc.plaintext)
    assert [name for name in flakelog.__all__ if name != "__version__" and name not in text] == []
    assert f"VERSION\n    {VERSION}" in text


def test_help_works_without_the_extras():
    """`flakelog.read` needs pyarrow. Without it, help leaves that name out."""
    program = (
        "import sys, pydoc\n"
        "class Hidden:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('pyarrow', 'pyspark'): raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Hidden())\n"
        "import importlib.util\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, package=None: None if name == 'pyarrow' else find(name, package)\n"
        "import flakelog\n"
        "text = pydoc.render_doc(flakelog, renderer=pydoc.plaintext)\n"
        "print('class Producer' in text, 'read(' in text)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "True False\n", done.stderr


@pytest.mark.parametrize("name", sorted(set(flakelog.__all__) - {"__version__"}))
def test_a_public_name_and_its_methods_have_docstrings(name):
    exported = getattr(flakelog, name)
    assert inspect.getdoc(exported), f"flakelog.{name} has no docstring"
    if inspect.isclass(exported):
        members = public_members(exported)
        undocumented = [member_name for member_name, member in members.items() if not inspect.getdoc(member)]
        assert undocumented == [], f"flakelog.{name} has members without a docstring"


def test_the_api_reference_has_each_public_name():
    page = (ROOT / "docs" / "api.md").read_text()
    named = set(re.findall(r"^::: flakelog\.(\w+)$", page, re.MULTILINE))
    assert set(flakelog.__all__) - named == {"__version__"}


@pytest.mark.parametrize("name", sorted(set(errors.__all__) - {"ErrorCode"}))
def test_an_error_is_a_flakelog_error_that_explains_itself(name):
    error = getattr(errors, name)
    assert issubclass(error, errors.FlakelogError)
    assert error.__name__ == name
    assert error.__doc__


def test_a_record_is_the_one_that_a_client_returns():
    assert flakelog.Record._fields[:6] == ("offset", "id", "timestamp_ms", "key", "value", "headers")


def test_importing_the_errors_loads_no_heavy_package():
    program = "import sys, flakelog.errors; print(sorted({'twisted', 'kazoo', 'kio', 'pyspark'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_the_asyncio_version_of_admin_has_all_its_methods_with_the_same_arguments():
    ours, theirs = public_members(flakelog.Admin), public_members(flakelog.AsyncAdmin)
    assert ours.keys() == theirs.keys()
    assert all(inspect.iscoroutinefunction(method) for method in theirs.values())
    for name in ours.keys() - {"close"}:
        assert inspect.signature(ours[name]) == inspect.signature(theirs[name]), name
        assert inspect.getdoc(ours[name]) == inspect.getdoc(theirs[name]), name
