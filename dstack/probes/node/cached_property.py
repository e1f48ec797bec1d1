"""Attributes that are computed when they are first used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class cached_property(Generic[T]):
    """``functools.cached_property`` without its lock of CPython before 3.12, which could not travel to nodes."""

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    def __get__(self, instance: Any, owner: type) -> T:
        """The value; from then on the instance has it under the same name."""
        value = self._make(instance)
        instance.__dict__[self._make.__name__] = value
        return value
