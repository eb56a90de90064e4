"""What `make` installs fits the oldest Python that README names, and `.ci/pythons.py` resolves just that."""

import ast
import re
import runpy
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parent.parent


def oldest_python():
    (minor,) = re.findall(r"Python (3\.\d+) or later", (ROOT / "README.md").read_text())
    return f"{minor}.0"


def pinned():
    return re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)


def test_every_installed_pin_takes_the_oldest_python_of_the_readme():
    """An installation with that Python fails otherwise, and only there."""
    refusing = []
    for name in pinned():
        try:
            takes = distribution(name).metadata.get("Requires-Python", "")
        except PackageNotFoundError:
            continue  # for another Python, or for `make bench`
        if not SpecifierSet(takes).contains(oldest_python()):
            refusing.append(f"{name} (Python {takes})")
    assert not refusing, f"Python {oldest_python()} cannot install {', '.join(refusing)}: pin older versions"


def test_the_readme_and_the_package_name_the_same_oldest_python():
    (minimum,) = re.findall(r"^python_requires = >=(.*)$", (ROOT / "setup.cfg").read_text(), re.MULTILINE)
    assert f"{minimum}.0" == oldest_python()


def test_ci_resolves_the_extras_that_make_installs_from_the_oldest_python_on():
    source = ast.parse((ROOT / ".ci" / "pythons.py").read_text())
    constants = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in source.body
        if isinstance(node, ast.Assign) and node.targets[0].id in ("EXTRAS", "RESOLVED")
    }
    installed = re.findall(r"set_up\.py install \$\(VENV\) (\S+) '(the \w+)", (ROOT / "Makefile").read_text())
    assert {purpose: tuple(extras.split(",")) for extras, purpose in installed} == constants["EXTRAS"]
    assert constants["RESOLVED"][0] == oldest_python()


def test_an_interpreter_is_one_that_can_make_environments_wherever_it_lies(tmp_path, monkeypatch):
    """pyenv puts a program into PATH for each version it knows of, which fails unless that version is chosen."""
    on_path, pyenv = tmp_path / "python3.99", tmp_path / "pyenv" / "versions" / "3.99.1" / "bin" / "python3.99"
    pyenv.parent.mkdir(parents=True)
    on_path.write_text("#!/bin/sh\nexit 127\n")
    pyenv.write_text("#!/bin/sh\necho 3.99.1 /here\n")
    for program in (on_path, pyenv):
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    interpreters = runpy.run_path(str(ROOT / ".ci" / "pythons.py"))["interpreters"]
    assert interpreters("3.99") == {"3.99.1 /here": str(pyenv)}
    on_path.write_text("#!/bin/sh\necho 3.99.1 /here\n")
    assert interpreters("3.99") == {"3.99.1 /here": str(on_path)}
    assert interpreters("3.98") == {}
