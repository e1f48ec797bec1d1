"""Attributes that are worked out when they are first asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class on_demand(Generic[T]):
    """As ``functools.cached_property``, which before CPython 3.12 has a lock, so that classes with it cannot travel."""

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    def __get__(self, instance: Any, owner: type) -> T:
        """The value; from then on the instance has it under the same name."""
        value = self._make(instance)
        instance.__dict__[self._make.__name__] = value
        return value
