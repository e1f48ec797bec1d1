"""The groups of a stand-in for torch.distributed in this process; inconsistent ones are left out."""

from __future__ import annotations

import ctypes
import os
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

from dstack.libraries.torch.groups import MAX_MEMBERS, MODULE
from dstack.observed import calls
from dstack.probes.node.cpython.memory import open_memory
from dstack.probes.node.cpython.python_process import KnownPython, PythonProcess
from dstack.probes.node.group_calls import Memberships, ProcessGroups
from tests.unit.support.own_process import own_interpreter

VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class ProcessGroup(ctypes.Structure):
    """The address of the C object is where pybind11 has it, as in the program of test_process_groups."""

    _fields_ = [
        ("head", ctypes.c_char * 24),
        ("rank", ctypes.c_int),
        ("size", ctypes.c_int),
        ("backend", ctypes.c_int64),
        ("text", ctypes.c_void_p),
        ("length", ctypes.c_size_t),
        ("characters", ctypes.c_char * 16),
    ]
    __hash__ = object.__hash__


def group(rank: int, size: int, description: bytes = b"default_pg") -> ProcessGroup:
    made = ProcessGroup(rank=rank, size=size, length=len(description), characters=description)
    made.text = ctypes.addressof(made) + ProcessGroup.characters.offset
    return made


@pytest.fixture(autouse=True)
def launcher(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set the variables of a launcher; there are none before."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)

    def set_variables(**values: str) -> None:
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return set_variables


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of torch.distributed with two groups, one of them the default."""
    module: Any = types.ModuleType(MODULE)
    default = group(1, 2)
    module._world = types.SimpleNamespace(_default_pg=default)
    module._pg_group_ranks = {default: {0: 0, 1: 1}}
    module._pg_names = {default: "0"}
    module._default_pg_init_method = "tcp://10.0.0.1:29500?use_libuv=1"
    monkeypatch.setitem(sys.modules, MODULE, module)
    return module


def read(known: KnownPython | None = None) -> Memberships:
    with open_memory(os.getpid(), keeps_pages=True) as memory:
        return ProcessGroups(PythonProcess(memory, own_interpreter(), known)).memberships()


def names(memberships: Memberships) -> list[str]:
    return [one.name for one in memberships.groups]


def test_a_process_without_torch_has_no_groups(launcher: Callable[..., None]) -> None:
    launcher(RANK="1", WORLD_SIZE="2")

    assert read() == Memberships()


def test_the_default_group_gives_rank_and_size(torch: Any) -> None:
    found = read()

    assert (found.rank, found.world_size, found.local_rank) == (1, 2, None)
    assert found.groups == (
        calls.ProcessGroup(
            library="torch.distributed",
            world="tcp://10.0.0.1:29500",
            name="0",
            rank=1,
            ranks=(0, 1),
            description="default_pg",
        ),
    )


def test_the_launchers_variables_are_the_fallback_without_a_group(torch: Any, launcher: Callable[..., None]) -> None:
    torch._world._default_pg = None
    torch._pg_group_ranks.clear()
    launcher(RANK="3", LOCAL_RANK="1", WORLD_SIZE="8")

    assert read() == Memberships(rank=3, local_rank=1, world_size=8)


@pytest.mark.parametrize("value", ["", "-1", "1.5", "one", "9" * 20, "²"])
def test_a_variable_that_is_no_rank_is_none(torch: Any, launcher: Callable[..., None], value: str) -> None:
    torch._world._default_pg = None
    launcher(RANK=value)

    assert read().rank is None


def test_the_launchers_variables_are_the_fallback_if_the_world_size_differs(
    torch: Any, launcher: Callable[..., None]
) -> None:
    torch._world._default_pg.size = 3
    assert read() == Memberships()

    launcher(RANK="0", WORLD_SIZE="2")
    assert [one.rank for one in read().groups] == [0]

    launcher(WORLD_SIZE="3")
    assert names(read()) == []


@pytest.mark.parametrize(
    "ranks",
    [
        {0: 0, 1: 2},
        {0: 0, 1: 0},
        {0: 1, 1: 2},
        {0: 0, 2: 1},
        {"0": 0, "1": 1},
        {0: 0, 1: None},
        {0: 0, 1: -1},
        {0: 0, 1: 2**40},
        {},
        {rank: rank for rank in range(MAX_MEMBERS + 1)},
    ],
    ids=lambda ranks: str(ranks)[:20],
)
def test_a_group_with_impossible_ranks_is_left_out(torch: Any, ranks: dict[Any, Any]) -> None:
    odd, right = group(0, 2, b"odd"), group(1, 2, b"right")
    torch._pg_group_ranks.update({odd: ranks, right: {0: 0, 1: 1}})
    torch._pg_names.update({odd: "1", right: "2"})

    assert names(read()) == ["0", "2"]


def test_a_group_with_its_own_name_is_a_separate_world(torch: Any) -> None:
    """As in programs that send weights from trainers to engines: its ranks are not in the default group."""
    weights = group(0, 3, b"undefined")
    torch._pg_group_ranks[weights] = {0: 0, 1: 1, 2: 2}
    torch._pg_names[weights] = "weight_sync"

    assert read().groups[1] == calls.ProcessGroup(
        library="torch.distributed",
        world="weight_sync",
        name="weight_sync",
        rank=0,
        ranks=(0, 1, 2),
        description="weight_sync",
    )

    torch._world._default_pg = None
    del torch._pg_group_ranks[next(iter(torch._pg_names))]
    found = read()
    assert names(found) == ["weight_sync"]
    assert found.rank is None


def test_a_named_group_of_another_size_is_left_out(torch: Any) -> None:
    weights = group(0, 4)
    torch._pg_group_ranks[weights] = {0: 0, 1: 1, 2: 2}
    torch._pg_names[weights] = "weight_sync"

    assert names(read()) == ["0"]


def test_groups_of_torch_that_cannot_be_read_hide_no_others(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch._world = None
    name = "ray.util.collective.collective"
    gradients = types.SimpleNamespace(_rank=0, _world_size=2, _group_name="gradients")
    manager = types.SimpleNamespace(_name_group_map={"gradients": gradients})
    module: Any = types.ModuleType(name)
    module._group_mgr = manager
    monkeypatch.setitem(sys.modules, name, module)

    assert names(read()) == ["gradients"]


def test_objects_that_are_no_groups_are_left_out(torch: Any) -> None:
    torch._pg_group_ranks.update({-100: {0: 0}, "text": {0: 0, 1: 1}, group(1, 2): [0, 1]})

    assert names(read()) == ["0"]


def test_an_init_method_without_an_address_is_accepted(torch: Any, launcher: Callable[..., None]) -> None:
    def world(method: str | None) -> str:
        torch._default_pg_init_method = method
        return str(read().groups[0].world)

    assert world("file:///tmp/store") == "file:///tmp/store"
    assert world(None) == ""
    assert world("env://") == ""
    launcher(MASTER_ADDR="10.0.0.2", MASTER_PORT="29600")
    assert world("env://") == "tcp://10.0.0.2:29600"


@pytest.mark.parametrize("length", [0, 4, 2**40, 2**63])
def test_a_description_that_is_none_is_empty(torch: Any, length: int) -> None:
    odd = group(1, 2, b"odd")
    odd.length = length
    torch._pg_group_ranks[odd] = {0: 0, 1: 1}
    torch._pg_names[odd] = "1"

    assert [one.description for one in read().groups] == ["default_pg", ""]


def test_without_the_default_description_none_is_used(torch: Any) -> None:
    torch._world._default_pg.characters = b"elsewhere!"
    tp = group(1, 2, b"mesh_tp")
    torch._pg_group_ranks[tp] = {0: 0, 1: 1}
    torch._pg_names[tp] = "1"

    assert [one.description for one in read().groups] == ["", ""]


def test_known_ranks_are_validated(torch: Any) -> None:
    known = KnownPython()
    large = group(1, 300, b"large")
    torch._pg_names[large] = "1"
    ranks = torch._pg_group_ranks[large] = {rank: rank for rank in range(300)}

    first, again = read(known), read(known)
    assert first.groups[1].ranks == again.groups[1].ranks == tuple(range(300))

    ranks[300] = 300
    large.size = 301
    assert read(known).groups[1].ranks == tuple(range(301))
