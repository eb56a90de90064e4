"""The garbage collector during imports: it would walk all modules again and again, and find nothing to free."""

import gc

_is_paused = False


def pause() -> None:
    """Collect no garbage until `resume`. A server's start takes a sixth less CPU so."""
    global _is_paused
    if gc.isenabled():
        gc.disable()
        _is_paused = True


def resume() -> None:
    """Collect garbage again after `pause`, but never in what there is now: modules stay until the process ends.

    A program that has turned its collector off keeps it off.
    """
    global _is_paused
    if _is_paused:
        gc.freeze()
        gc.enable()
        _is_paused = False
