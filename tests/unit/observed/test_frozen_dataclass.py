"""Frozen dataclasses behave as those of the standard library."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, replace
from typing import Any

import msgspec
import pytest

from dstack.observed.frozen_dataclass import frozen_dataclass


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Ours:
    number: int
    name: str = "x"
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standard:
    number: int
    name: str = "x"
    labels: dict[str, str] = field(default_factory=dict)


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class OfOneField:
    number: int


KINDS = pytest.mark.parametrize("kind", [Ours, Standard])


@KINDS
def test_values_have_their_fields_and_defaults(kind: Any) -> None:
    value = kind(number=1)

    assert asdict(value) == {"number": 1, "name": "x", "labels": {}}
    assert [one.name for one in fields(kind)] == ["number", "name", "labels"]
    assert repr(value) == f"{kind.__name__}(number=1, name='x', labels={{}})"
    assert not hasattr(value, "__dict__")


@KINDS
def test_each_value_has_its_own_default_of_a_factory(kind: Any) -> None:
    kind(number=1).labels["a"] = "b"

    assert kind(number=1).labels == {}
    assert kind(number=1, labels={"c": "d"}).labels == {"c": "d"}


@KINDS
def test_values_are_equal_if_all_fields_are(kind: Any) -> None:
    assert kind(number=1) == kind(number=1)
    assert kind(number=1) != kind(number=2)
    assert kind(number=1) != (1, "x", {})
    assert replace(kind(number=1), name="y") == kind(number=1, name="y")


def test_only_values_of_one_class_are_equal() -> None:
    assert Ours(number=1) != OfOneField(number=1)  # type: ignore[comparison-overlap]
    assert OfOneField(number=1) == OfOneField(number=1) != OfOneField(number=2)


def test_values_with_hashable_fields_are_hashable() -> None:
    assert len({OfOneField(number=1), OfOneField(number=1), OfOneField(number=2)}) == 2
    with pytest.raises(TypeError, match="unhashable"):
        hash(Ours(number=1))


@KINDS
def test_values_cannot_be_changed(kind: Any) -> None:
    value = kind(number=1)

    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'number'"):
        value.number = 2
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'number'"):
        del value.number


@KINDS
@pytest.mark.parametrize("given", [{}, {"number": 1, "other": 2}])
def test_missing_and_unknown_fields_are_errors(kind: Any, given: dict[str, int]) -> None:
    with pytest.raises(TypeError, match=r"number|other"):
        kind(**given)


def test_fields_are_given_by_name() -> None:
    with pytest.raises(TypeError, match="positional"):
        Ours(1)  # type: ignore[call-arg]


@KINDS
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_copies_are_equal(kind: Any, copied: Callable[[Any], Any]) -> None:
    value = kind(number=1, labels={"a": "b"})

    assert copied(value) == value


@KINDS
def test_msgspec_encodes_and_decodes_values(kind: Any) -> None:
    assert msgspec.json.decode(b'{"number": 1}', type=kind) == kind(number=1)
    assert msgspec.json.encode(kind(number=1)) == b'{"number":1,"name":"x","labels":{}}'
    with pytest.raises(msgspec.ValidationError, match="number"):
        msgspec.json.decode(b"{}", type=kind)
