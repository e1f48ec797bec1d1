"""Values of locals are shown as short texts, for any content."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstack.probes.node.cpython.memory import UnreadableMemory, open_memory
from dstack.probes.node.cpython.objects import Objects
from dstack.probes.node.cpython.values import MAX_CHARACTERS, MAX_DEPTH, shown_locals, text_of
from tests.fuzzing.effort import examples
from tests.unit.probes.node.cpython.test_memory_frames import sleeping
from tests.unit.support.hostile_memory import HOSTILE, Change, Copied, Recorder, ends_well
from tests.unit.support.own_process import own_objects, own_process

LONGEST = 2_100
"""A dict of dicts of dicts of the longest texts, each cut after the part that begins within the limit."""
MAX_NUMBER = 2**120 - 1


@pytest.fixture
def objects() -> Iterator[Objects]:
    with open_memory(os.getpid(), keeps_pages=True) as memory:
        yield own_objects(memory)


def shown(value: object) -> str:
    with open_memory(os.getpid(), keeps_pages=True) as memory:
        return text_of(own_objects(memory), id(value))


def in_full(value: Any) -> str:
    """Python's own ``repr`` except for quotes, and for the comma of a tuple of one."""
    match value:
        case str():
            return f'"{value}"'
        case list():
            return f"[{', '.join(map(in_full, value))}]"
        case tuple():
            return f"({', '.join(map(in_full, value))})"
        case dict():
            return f"{{{', '.join(f'{in_full(key)}: {in_full(one)}' for key, one in value.items())}}}"
    return repr(value)


def depth_of(value: Any) -> int:
    match value:
        case list() | tuple():
            return 1 + max(map(depth_of, value), default=0)
        case dict():
            return 1 + max((max(depth_of(key), depth_of(one)) for key, one in value.items()), default=0)
    return 0


PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-MAX_NUMBER, MAX_NUMBER),
    st.floats(),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=200),
)
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        st.lists(inner),
        st.lists(inner).map(tuple),
        st.dictionaries(st.one_of(st.text(), st.integers(-MAX_NUMBER, MAX_NUMBER)), inner),
    ),
    max_leaves=30,
)


@examples(400)
@given(value=VALUES)
def test_a_short_value_is_shown_as_by_repr(value: Any) -> None:
    text, full = shown(value), in_full(value)

    if len(full) <= MAX_CHARACTERS and depth_of(value) <= MAX_DEPTH:
        assert text == full
    assert len(text) <= LONGEST
    assert text[0] == full[0]
    if depth_of(value) <= 1 and "..." in text:
        assert full.startswith(text[: text.index("...")].rstrip(", "))


class Point(NamedTuple):
    x: int


class Text(str):
    __slots__ = ()


class Strange:
    def __repr__(self) -> str:
        raise AssertionError("no code of the process is run")


@pytest.mark.parametrize(
    "value",
    [2**121, -(2**200), b"bytes", {1}, Strange(), Point(1), Text("x"), object, range(3), len, 1j],
    ids=lambda value: type(value).__name__,
)
def test_values_of_other_types_are_shown_by_type_and_address(value: object) -> None:
    name = type(value).__name__

    assert shown(value) == f"<{name} at {id(value):#x}>"
    assert shown([value]) == f"[<{name} at {id(value):#x}>]"


@pytest.mark.parametrize("make", [lambda: "x" * 10**6, lambda: "é" * 10**5, lambda: "\U0001f980" * 10**5])
def test_a_long_text_is_cut_and_not_read_whole(make: Callable[[], str]) -> None:
    text = make()
    with open_memory(os.getpid(), keeps_pages=True) as memory:
        assert text_of(own_objects(memory), id(text)) == f'"{text[:MAX_CHARACTERS]}..."'
        assert len(memory.pages) < 10


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_long_list_is_cut_and_not_read_whole(kind: Callable[[Any], Any]) -> None:
    value = kind(number % 7 for number in range(200_000))
    with open_memory(os.getpid(), keeps_pages=True) as memory:
        text = text_of(own_objects(memory), id(value))
        assert len(memory.pages) < 20

    assert text[1:-1].startswith("0, 1, 2, 3, 4, 5, 6, 0, ")
    assert text[1:-1].endswith(", ...")
    assert len(text) < 2 * MAX_CHARACTERS


def test_a_large_dict_is_cut() -> None:
    value = {number: number for number in range(1_000)}

    assert shown(value).startswith("{0: 0, 1: 1, 2: 2, ")
    assert shown(value).endswith(", ...}")
    assert len(shown(value)) < 2 * MAX_CHARACTERS
    assert shown(dict.fromkeys(range(70_000))).startswith("<dict at ")


def test_a_container_that_contains_itself_is_shown_once() -> None:
    ring: list[Any] = [1]
    ring.append(ring)
    wide: list[Any] = []
    wide += [wide] * 100
    chest: dict[str, Any] = {}
    chest["it"] = chest

    assert shown(ring) == f"[1, [1, [1, <list at {id(ring):#x}>]]]"
    assert shown(chest) == f'{{"it": {{"it": {{"it": <dict at {id(chest):#x}>}}}}}}'
    assert len(shown(wide)) < LONGEST


def test_a_dict_that_has_lost_entries_shows_the_others() -> None:
    value = {number: str(number) for number in range(20)}
    for number in range(18):
        del value[number]

    assert shown(value) == '{18: "18", 19: "19"}'


# Locals


def test_the_locals_of_a_frame_are_shown_by_name() -> None:
    shared = "before"

    def inner(sleep: Callable[[], object], argument: int, *others: int, **more: int) -> object:
        nonlocal shared
        own = [shared]
        result = (lambda: (own, sleep()))()
        later = 1
        return result, later

    with (
        sleeping(lambda sleep: inner(sleep, 7, 8, key=9)) as thread,
        open_memory(os.getpid(), keeps_pages=True) as memory,
    ):
        process = own_process(memory)
        (found,) = [one for one in process.threads if one.thread_id == thread.ident]
        (frame,) = [one for one in found.frames if one.function == "inner"]
        values = shown_locals(process.objects, frame)

    assert values.pop("sleep").startswith("<method at ")
    assert values == {"argument": "7", "others": "(8)", "more": '{"key": 9}', "own": '["before"]', "shared": '"before"'}


class Broken:
    """A frame whose locals are unreadable, or whose numbers of names and values differ."""

    names = ("first", "second", "third")

    def __init__(self, values: tuple[int, ...] | None) -> None:
        self._values = values

    @property
    def locals(self) -> tuple[int, ...]:
        if self._values is None:
            raise UnreadableMemory("not mapped")
        return self._values


def test_locals_that_cannot_be_read_are_left_out(objects: Objects) -> None:
    value = "text"
    lost: Any = Broken(None)
    partly: Any = Broken((id(value), 8, 0))

    assert shown_locals(objects, lost) == {}
    assert shown_locals(objects, partly) == {"first": '"text"'}


# Hostile memory


@pytest.fixture(scope="module")
def specimen() -> tuple[Recorder, dict[str, Any]]:
    ring: list[Any] = [1, "x", (2.5, None)]
    ring.append(ring)
    values = {
        "ring": ring,
        "dict": {f"key {number}": [number, {number: True}] for number in range(20)},
        "text": "wide \U0001f980 text",
        "number": -(2**70),
    }
    recorder = Recorder()
    for value in values.values():
        text_of(own_objects(recorder), id(value))
    recorder.close()
    return recorder, values


@examples(300)
@given(data=st.data())
def test_a_changed_value_is_shown_or_rejected(specimen: tuple[Recorder, dict[str, Any]], data: st.DataObject) -> None:
    recorder, values = specimen
    touched = st.sampled_from(sorted(recorder.touched))
    word = st.one_of(
        st.none(), st.sampled_from(HOSTILE), touched, st.sampled_from([id(one) for one in values.values()])
    )
    changes = data.draw(st.lists(st.builds(Change, touched, st.integers(0, 30), word), min_size=1, max_size=6))
    value = values[data.draw(st.sampled_from(sorted(values)))]
    memory = Copied(recorder.pages, changes)
    texts: list[str] = []

    ends_well(memory, lambda: texts.append(text_of(own_objects(memory), id(value))))

    assert all(len(text) <= LONGEST for text in texts)
