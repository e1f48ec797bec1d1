"""Frozen dataclasses with slots whose definition compiles nothing.

:mod:`dataclasses` compiles six methods for each such class, which takes 1 ms on CPython 3.11, and every process of a
command imports the 33 classes of observed values. Here the constructor is compiled when a class gets its first value,
and all classes share the other methods.

The classes are pickled by value and travel to nodes. There :mod:`dataclasses` no longer knows their fields, so a class
has them itself: all names in ``__slots__``, the defaults of optional ones in ``_defaults`` and ``_factories``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["frozen_dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass as frozen_dataclass
else:
    from collections.abc import Callable
    from dataclasses import MISSING, FrozenInstanceError, dataclass, fields
    from operator import attrgetter

    def frozen_dataclass(*, frozen: bool, slots: bool, kw_only: bool) -> Callable[[type], type]:
        """The decorator ``dataclass`` for classes that are ``frozen``, with ``slots`` and keyword arguments only."""
        assert (frozen, slots, kw_only) == (True, True, True), "the methods are those of such classes"
        return _decorated

    def _decorated(cls: type) -> type:
        made = dataclass(slots=True, kw_only=True, init=False, repr=False, eq=False)(cls)
        known = fields(made)
        made._defaults = {field.name: field.default for field in known if field.default is not MISSING}
        renewed = [field for field in known if field.default_factory is not MISSING]
        made._factories = {field.name: field.default_factory for field in renewed}
        made._values = attrgetter(*made.__slots__)
        for method in (_init, _eq, _hash, _repr, _setattr, _delattr, _getstate, _setstate):
            setattr(made, f"_{method.__name__}__", method)
        return made

    def _init(self: Any, **values: Any) -> None:
        kind = self.__class__
        kind.__init__ = _constructor(kind)
        kind.__init__(self, **values)

    def _constructor(kind: type) -> Callable[..., None]:
        """``def __init__(self, *, a, b=default_b): put(self, "a", a); put(self, "b", b)``."""
        made: dict[str, Any] = {"put": object.__setattr__}
        made |= {f"default_{name}": default for name, default in kind._defaults.items()}
        made |= {f"new_{name}": factory for name, factory in kind._factories.items()}
        required = [name for name in kind.__slots__ if name not in (*kind._defaults, *kind._factories)]
        optional = [
            *(f"{name}=default_{name}" for name in kind._defaults),
            *(f"{name}=None" for name in kind._factories),
        ]
        lines = [f"    if {name} is None: {name} = new_{name}()" for name in kind._factories]
        lines += [f"    put(self, {name!r}, {name})" for name in kind.__slots__]
        exec("\n".join([f"def __init__(self, *, {', '.join([*required, *optional])}):", *lines]), made)
        return made["__init__"]

    def _eq(self: Any, other: object) -> bool:
        return self._values(self) == other._values(other) if other.__class__ is self.__class__ else NotImplemented

    def _hash(self: Any) -> int:
        return hash(self._values(self))

    def _repr(self: Any) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"{type(self).__qualname__}({shown})"

    def _setattr(self: Any, name: str, value: object) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def _delattr(self: Any, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def _getstate(self: Any) -> list[Any]:
        return [getattr(self, name) for name in self.__slots__]

    def _setstate(self: Any, state: list[Any]) -> None:
        for name, value in zip(self.__slots__, state, strict=True):
            object.__setattr__(self, name, value)
