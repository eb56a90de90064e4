"""Shells complete commands, options, and the names of topics and groups. zsh and fish are skipped aloud if missing."""

import os
import shutil
import subprocess
import sys
from functools import partial

import pytest

from tests.compat.server_process import ROOT
from tests.compat.terminal import Terminal
from tests.patience import SECONDS


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_is_printed(flakelog, shell):
    code, script, _ = flakelog(f"completion {shell}")
    assert code == 0 and f"_FLAKELOG_COMPLETE={shell}_complete" in script.replace("'", "")


def completed(servers, *words):
    """Return what bash would offer for the last of the words, and stderr."""
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "FLAKELOG_SERVERS": servers, "_FLAKELOG_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(("flakelog", *words)), "COMP_CWORD": str(len(words)),
    }  # fmt: skip
    program = "import sys; from flakelog.cli import main; main(prog_name='flakelog')"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=SECONDS
    )
    return [line.partition(",")[2] for line in done.stdout.split()], done.stderr


def test_names_of_commands_topics_and_groups_are_completed(flakelog, group_broker):
    broker = group_broker
    flakelog = partial(flakelog, FLAKELOG_SERVERS=broker.address)
    flakelog("produce day-complete-topic", b"x\n")
    flakelog("consume day-complete-topic --group day-complete-group")
    assert completed(broker.address, "topic", "des")[0] == ["describe"]
    assert completed(broker.address, "consume", "day-compl")[0] == ["day-complete-topic"]
    assert completed(broker.address, "group", "describe", "day-compl")[0] == ["day-complete-group"]
    assert completed("127.0.0.1:1", "consume", "day-compl") == ([], ""), "a shell shows no error"


@pytest.fixture
def environment(broker, tmp_path):
    """The variables of a shell that finds a program `flakelog`, and no start-up files."""
    installed = tmp_path / "flakelog"
    installed.write_text(f"#!{sys.executable}\nfrom flakelog.cli import main\n\nmain(prog_name='flakelog')\n")
    installed.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    more = {"PYTHONPATH": str(ROOT), "FLAKELOG_SERVERS": broker.address, "PATH": path, "HOME": str(tmp_path)}
    return {**os.environ, **more, "TERM": "dumb"}


def needs(shell):
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell}: its completion is not tried")


def test_a_bash_that_has_sourced_the_script_completes(environment):
    asked = 'COMP_WORDS=(flakelog topic crea); COMP_CWORD=2; _flakelog_completion flakelog; echo "${COMPREPLY[@]}"'
    done = subprocess.run(
        ["bash", "-c", f'eval "$(flakelog completion bash)"\n{asked}'],
        capture_output=True, text=True, timeout=SECONDS, env=environment,
    )  # fmt: skip
    assert done.stdout.split() == ["create"], done.stderr


def test_a_fish_that_has_sourced_the_script_completes(flakelog, environment, tmp_path):
    needs("fish")
    flakelog("topic create day-fish-topic")
    (tmp_path / "day-fish-file").touch()
    asked = ("topic cre", "consume day-fish", "produce t day-fish", "topic alter --u")
    script = "\n".join(("flakelog completion fish | source", *(f"complete -C 'flakelog {each}'" for each in asked)))
    done = subprocess.run(
        ["fish", "--no-config", "-c", script],
        capture_output=True, text=True, timeout=SECONDS, env=environment, cwd=tmp_path,
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        "create\tCreate topics.", "day-fish-topic", "day-fish-file", "--unset\tPut it back to its default; repeatable."
    ], done.stderr  # fmt: skip


def test_a_zsh_that_has_sourced_the_script_completes(flakelog, environment):
    needs("zsh")
    flakelog("topic create day-zsh-topic")
    with Terminal(["zsh", "-f", "-i"], environment) as zsh:
        zsh.type("PS1=; autoload -U compinit; compinit -u -D; eval \"$(flakelog completion zsh)\"\n")
        zsh.type("echo it is 're''ady'\n")
        zsh.until("it is ready")
        zsh.type("flakelog topic cre\t")
        zsh.until("flakelog topic create ")
        zsh.type("\x15flakelog consume day-zsh\t")
        zsh.until("flakelog consume day-zsh-topic ")
