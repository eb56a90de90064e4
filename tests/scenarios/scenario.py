"""Text scenarios, like etcd/raft's testdata: paragraphs of commands, `----`, their answers and the resulting state.

A paragraph that has only comments is prose. Any other paragraph is a step: the reader runs its commands in order, and
below the rule come their answers and the world's state. A world is any object with a `do_<word>` for each command, a
list `output` of answers, and a `state()`.
"""

import re
import shlex
from difflib import unified_diff

RULE = "----"


def replay(text, world):
    """Run the whole text and return it with the actual answers and states in place of the expected ones."""
    return "\n\n".join(_step(paragraph, world) for paragraph in re.split(r"\n\s*\n", text.strip())) + "\n"


def difference(expected, happened, name):
    return "\n".join(unified_diff(expected.splitlines(), happened.splitlines(), name, "what happened", "", "", 6, ""))


def _step(paragraph, world):
    lines = paragraph.splitlines()
    given = lines[: lines.index(RULE)] if RULE in lines else lines
    commands = [line for line in given if not line.startswith("#")]
    if not commands:
        return paragraph
    world.output.clear()
    for command in commands:
        _carry_out(command, world)
    return "\n".join([*given, RULE, *world.output, world.state()])


def _carry_out(command, world):
    """Run a command: `word this that=5` calls `world.do_word("this", that="5")`."""
    word, *arguments = shlex.split(command)
    words = sorted(name.removeprefix("do_") for name in dir(world) if name.startswith("do_"))
    assert word in words, f"{command!r}: no such command; there are {', '.join(words)}"
    named = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    try:
        getattr(world, f"do_{word}")(*[argument for argument in arguments if "=" not in argument], **named)
    except Exception as error:
        error.add_note(f"in the command {command!r}")
        raise


def join_parts(*parts):
    """Join the non-empty parts into one line of state."""
    return " | ".join(part for part in parts if part)
