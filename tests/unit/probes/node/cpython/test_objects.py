"""Python objects are read correctly, in every representation of CPython."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from dstack.probes.node.cpython.memory import UnreadableMemory, open_memory
from dstack.probes.node.cpython.objects import Objects
from tests.unit.support.own_process import own_objects


@pytest.fixture(params=[False, True], ids=["plain", "kept pages"])
def own(request: pytest.FixtureRequest) -> Iterator[Objects]:
    """The objects of this process."""
    with open_memory(os.getpid(), keeps_pages=request.param) as memory:
        yield own_objects(memory)


class Plain:
    def __init__(self) -> None:
        self.first = 1
        self.second = "two"


class Slotted:
    __slots__ = ("first",)


def with_a_dict() -> Plain:
    value = Plain()
    value.__dict__["third"] = 3.0
    return value


def with_less() -> Plain:
    value = Plain()
    del value.first
    return value


@pytest.mark.parametrize("make", [Plain, with_a_dict, with_less])
def test_attributes_are_found_in_every_kind_of_storage(own: Objects, make: Callable[[], Plain]) -> None:
    values = [Plain(), make(), Plain()]

    for value in values:
        assert own.attributes(id(value)) == {name: id(kept) for name, kept in vars(value).items()}


def test_attributes_are_found_before_their_dict_is_created(own: Objects) -> None:
    value = Plain()

    found = own.attributes(id(value))

    assert {name: own.text(at) if own.is_a(at, "str") else own.number(at) for name, at in found.items()} == {
        "first": 1,
        "second": "two",
    }


def test_objects_without_attributes_are_rejected(own: Objects) -> None:
    with pytest.raises(UnreadableMemory):
        own.attributes(id(Slotted()))


@pytest.mark.parametrize("text", ["", "a", "plain ascii", "é", "Ωmega", "\U0001f980 and more"])
def test_strings_of_every_width_are_read(own: Objects, text: str) -> None:
    assert own.text(id(text)) == text


@pytest.mark.parametrize("number", [0, 1, -1, 2**30, -(2**61) + 1, 2**90 + 7, 0.0, -1.5, 1e300, None])
def test_numbers_are_read(own: Objects, number: float | None) -> None:
    assert own.number(id(number)) == number


def test_lists_tuples_and_sets_are_read(own: Objects) -> None:
    items = [object(), "x", 1.5]
    as_tuple, empty_list, empty_set = tuple(items), list[object](), set[object]()
    grown = {str(number) for number in range(100)}
    shrunk = set(grown)
    for number in range(90):
        shrunk.discard(str(number))

    assert own.items(id(items)) == own.items(id(as_tuple)) == tuple(map(id, items))
    assert own.items(id(empty_list)) == own.items(id(())) == own.set_items(id(empty_set)) == ()
    assert own.set_items(id(grown)) == tuple(sorted(map(id, grown)))
    assert own.set_items(id(shrunk)) == tuple(sorted(map(id, shrunk)))


def test_an_object_of_another_type_is_rejected(own: Objects) -> None:
    for read in (own.text, own.items, own.set_items, own.data, own.number):
        with pytest.raises(UnreadableMemory):
            read(id(own))
