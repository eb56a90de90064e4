"""Old spellings of public names: a use of one raises a TypeError that names the new one.

    @renamed(by_position=True, timeout="timeout_ms=, in milliseconds")
    def __init__(self, servers: str, *, timeout_ms: int = 30_000) -> None: ...

    positions = RenamedAttribute("uncommitted")
"""

from collections.abc import Callable
from functools import wraps
from types import FunctionType
from typing import Any, Never, ParamSpec, Self, TypeVar, cast, overload

P = ParamSpec("P")
T = TypeVar("T")


class OldSpelling(TypeError, AttributeError):
    """A public name in its old spelling. It is an AttributeError too, so that `hasattr` returns False."""


def renamed(*, by_position: bool = False, **new_spellings: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Let a function raise OldSpelling for arguments with their old names. `new_spellings` says what to give instead.

    With `by_position`, the first old name stands for a further argument by position too: callers gave a bare number
    there, which does not show its unit.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        taken_by_position = cast(FunctionType, function).__code__.co_argcount
        name = cast(FunctionType, function).__qualname__.removesuffix(".__init__")

        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> T:
            old = next((old for old in new_spellings if old in kwargs), None)
            if old is None and by_position and len(args) > taken_by_position:
                old = next(iter(new_spellings))
            if old is not None:
                raise OldSpelling(f"{name}() takes no `{old}` any more: give {new_spellings[old]}")
            return function(*args, **kwargs)

        return checked

    return decorate


class RenamedAttribute:
    """An attribute of a class in its old spelling."""

    def __init__(self, new_name: str) -> None:
        self._new_name = new_name
        self._old_name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._old_name = f"{owner.__name__}.{name}"

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type) -> Never: ...

    def __get__(self, instance: object | None, owner: type) -> Any:
        if instance is None:
            return self
        raise OldSpelling(f"{self._old_name} has a new name: {self._new_name}")
