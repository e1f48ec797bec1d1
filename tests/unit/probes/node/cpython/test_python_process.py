"""Modules and their attributes are found by name, and cached addresses are validated."""

from __future__ import annotations

import os
import sys
import threading
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from dstack.probes.node.cpython.memory import PAGE, ProcessMemory, open_memory
from dstack.probes.node.cpython.python_process import (
    PTHREAD_TID,
    Interpreter,
    KnownPython,
    PythonProcess,
    os_thread_id,
    size_of_pthread,
)
from dstack.probes.node.procfs import proc
from tests.unit.support.own_process import own_interpreter, own_objects

NAME = "a_module_of_dstacks_tests"


@pytest.fixture
def module() -> Iterator[types.ModuleType]:
    made = sys.modules[NAME] = types.ModuleType(NAME)
    yield made
    del sys.modules[NAME]


@pytest.fixture(params=["by hash", "by search"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How names are found; by a search where the secret of the process's hashes is not known."""
    if request.param == "by search":
        monkeypatch.setattr(Interpreter, "hash_secret", lambda _: None)
    return str(request.param)


def process_now(known: KnownPython) -> Iterator[PythonProcess]:
    with open_memory(os.getpid(), keeps_pages=True) as memory:
        yield PythonProcess(memory, own_interpreter(), known)


def address_of(known: KnownPython, name: str, module: str = NAME) -> int:
    (found,) = [process.modules.lookup(module, name) for process in process_now(known)]
    return found


@pytest.mark.usefixtures("way")
def test_the_attributes_of_a_module_are_found(module: types.ModuleType) -> None:
    module.__dict__.update({f"name{number}": object() for number in range(500)})

    for known in (KnownPython(), KnownPython()):
        for name in ("name0", "name499", "name250"):
            assert address_of(known, name) == id(vars(module)[name])
        assert address_of(known, "absent") == 0
        assert address_of(known, "name0", module="absent") == 0


def test_a_cached_address_is_validated(module: types.ModuleType, way: str) -> None:
    known = KnownPython()
    module.__dict__.update({"one": object(), "two": object()})
    assert address_of(known, "two") == id(module.two)
    places = dict(known.places)
    assert bool(places) == (way == "by search")

    del module.one, module.two
    assert address_of(known, "two") == 0
    module.__dict__.update({f"before{number}": object() for number in range(300)})
    module.__dict__["two"] = two = object()
    assert address_of(known, "two") == id(two)
    assert known.places != places or way == "by hash"
    module.__dict__["two"] = other = object()
    assert address_of(known, "two") == id(other)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("place", [-1, 0, 1, 10**6, 2**62])
def test_a_wrong_cached_address_is_no_error(module: types.ModuleType, place: int) -> None:
    module.__dict__["wanted"] = wanted = object()
    known = KnownPython()
    assert address_of(known, "wanted") == id(wanted)

    known.places = dict.fromkeys(known.places, place)

    assert address_of(known, "wanted") == id(wanted)


@contextmanager
def noting(memory: ProcessMemory, reads: list[int]) -> Iterator[None]:
    """Add the number of read bytes to the last number."""
    read_spans = memory._read_spans

    def noted(spans: Sequence[Sequence[int]]) -> bytes:
        reads[-1] += sum(size for _, size in spans)
        return read_spans(spans)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "_read_spans", noted)
        yield


def test_a_large_dict_is_searched_once_or_never(module: types.ModuleType, way: str) -> None:
    module.__dict__.update({f"{'x' * 200}{number}": number for number in range(5_000)})
    module.__dict__["wanted"] = wanted = object()
    known = KnownPython()
    reads: list[int] = []

    for _ in range(2):
        for process in process_now(known):
            reads.append(0)
            with noting(process.memory, reads):
                assert process.modules.lookup(NAME, "wanted") == id(wanted)

    assert (reads[0] > 1_000_000) == (way == "by search")
    assert reads[1] < 500_000


@pytest.mark.usefixtures("way")
def test_an_absent_module_is_searched_again_if_more_are_imported(module: types.ModuleType) -> None:
    known, later = KnownPython(), "another_module_of_dstacks_tests"

    def has(name: str) -> bool:
        (found,) = [process.modules.has(name) for process in process_now(known)]
        return found

    assert has(NAME)
    assert not has(later)
    assert not has(later)
    sys.modules[later] = types.ModuleType(later)
    try:
        assert has(later)
    finally:
        del sys.modules[later]
    assert not has(later)


def test_unmapped_cached_pages_are_no_error() -> None:
    known = KnownPython(pages=[0, PAGE, 2**46, 2**63, id(None) & -PAGE])

    for process in process_now(known):
        assert process.memory.pages.keys() == {id(None) & -PAGE}
        assert process.modules.has("threading")


def test_names_are_found_at_their_cached_addresses_until_they_move() -> None:
    table: dict[str, object] = {"before": 1, "name": object(), "more": 2}
    with open_memory(os.getpid(), keeps_pages=True) as memory:
        objects = own_objects(memory)
        assert objects.places_of(id(table), {"name", "more", "absent"}) == {"name": 1, "more": 2}
        assert objects.value_at(id(table), 1, "name") == id(table["name"])
        assert not objects.value_at(id(table), 2, "name")
        assert not objects.value_at(id(table), 3, "name")
    del table["name"]
    with open_memory(os.getpid(), keeps_pages=True) as memory:
        assert not own_objects(memory).value_at(id(table), 1, "name")


def test_a_thread_has_its_os_id_in_a_struct_whose_size_the_c_library_states() -> None:
    with open_memory(os.getpid()) as memory:
        assert os_thread_id(memory, threading.get_ident(), ()) == threading.get_native_id()

    assert PTHREAD_TID[proc.machine()] < size_of_pthread(proc.mapped_files(os.getpid())) < 1 << 14
    with pytest.raises(ValueError, match="another C library"):
        size_of_pthread({})
