"""Garbage is not collected during the imports of a command, and is collected while the command runs."""

import gc

import click
import pytest

from flakelog import garbage
from flakelog.cli import main


@pytest.fixture
def paused():
    garbage.pause()
    yield
    garbage.resume()
    gc.unfreeze()


def test_nothing_is_collected_during_imports(paused):
    assert not gc.isenabled()


def test_garbage_is_collected_again_once_the_command_is_imported(paused):
    main.get_command(click.Context(main), "compat")
    assert gc.isenabled()


def test_what_was_there_before_is_not_walked_again(paused):
    garbage.resume()
    assert gc.get_freeze_count() > 0
    assert not gc.get_objects()


def test_a_program_that_never_paused_keeps_its_collector_as_it_is():
    garbage.resume()
    assert gc.isenabled() and gc.get_freeze_count() == 0


def test_a_program_that_turned_its_collector_off_keeps_it_off():
    gc.disable()
    try:
        garbage.pause()
        garbage.resume()
        assert not gc.isenabled() and gc.get_freeze_count() == 0
    finally:
        gc.enable()
