"""Every kind of call on a process group of torch.distributed is read, with gloo on CPUs."""

from __future__ import annotations

import importlib
import inspect
import json
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from dstack.libraries.torch import SITES
from tests.paths import PROGRAMS
from tests.processes import Child, running, wait_until
from tests.sampling import Plain, sample, target, words_of

pytestmark = pytest.mark.libraries

PROGRAM = PROGRAMS / "processes/torch_groups.py"
START_S = 120.0
TIMEOUT_S = 600
PEERS = {
    "broadcast": 1,
    "broadcast_object_list": 1,
    "gather": 0,
    "gather_object": 0,
    "recv": 1,
    "recv_object_list": 1,
    "reduce": 0,
    "scatter": 1,
    "scatter_object_list": 1,
    "send": 1,
}
UNTIL = {"monitored_barrier", "recv", "recv_object_list", "send"}
"""Calls whose timeout the kernel shows."""
WORKS = {
    "Work.wait of all_reduce": "Work.wait of torch.distributed",
    "Work.wait of irecv": "Work.wait of torch.distributed",
    "wait_tensor": "wait_tensor of torch.distributed",
}
"""Waits for operations that have begun before; their group is unknown."""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory, port: int) -> Iterator[tuple[Child, Child]]:
    logs = tmp_path_factory.mktemp("ranks")
    argv = [sys.executable, str(PROGRAM), str(port)]
    with running([*argv, "0"], {}, logs / "0") as first, running([*argv, "1"], {}, logs / "1") as second:
        for child in (first, second):
            child.wait_for_line("ready", deadline_s=START_S)
        yield first, second


def test_every_collective_of_the_installed_torch_is_known() -> None:
    """A collective that a newer torch adds or renames is missing here before a report misses it."""
    module: Any = importlib.import_module("torch.distributed.distributed_c10d")
    public = {name: getattr(module, name) for name in module.__all__}
    functions = {name: one for name, one in public.items() if type(one) is FunctionType}
    collectives = {name for name, one in functions.items() if "async_op" in inspect.signature(one).parameters}

    assert {"all_reduce", "gather"} <= collectives
    assert collectives <= {place.function for site in SITES for place in site.places}


def read(child: Child) -> Plain:
    process: Plain = sample(target(child.pid))["processes"]["w"]
    return process


def calls_of(process: Plain) -> Plain:
    calls = {thread["name"]: words_of(thread["call"]) for thread in process["threads"]}
    return {name: call for name, call in calls.items() if call and "torch.distributed" in (call["what"] or "")}


@pytest.fixture(scope="module")
def names(ranks: tuple[Child, Child]) -> Plain:
    line = ranks[0].line("names ")
    assert line is not None
    found: Plain = json.loads(line.removeprefix("names "))
    return found


@pytest.fixture(scope="module")
def calls(ranks: tuple[Child, Child], names: Plain) -> Plain:
    """The calls of rank 0 by the name of their thread, once all threads wait."""

    def settled() -> Plain | None:
        found = calls_of(read(ranks[0]))
        return found if len(found) == len(names) + 1 else None

    return wait_until(settled, deadline_s=START_S, what=lambda: f"calls, but only {calls_of(read(ranks[0]))}")


def test_each_call_has_its_operation_and_group(calls: Plain, names: Plain, port: int) -> None:
    world = {"library": "torch.distributed", "world": f"tcp://127.0.0.1:{port}", "rank": 0, "ranks": [0, 1]}
    expected = {
        description.removeprefix("of "): {**world, "name": name, "description": description}
        for description, name in names.items()
    }
    of_group = {name: call["of_group"] for name, call in calls.items() if name in expected and name not in WORKS}

    assert {name: call["operation"] for name, call in of_group.items()} == {name: name for name in of_group}
    assert {name: call["group"] for name, call in of_group.items()} == {name: expected[name] for name in of_group}
    assert of_group.keys() == expected.keys() - WORKS.keys()


def test_the_creation_of_a_group_waits_for_its_members(calls: Plain) -> None:
    call = calls["new_group"]["of_group"]

    assert (call["operation"], call["group"]["ranks"], call["group"]["description"]) == ("new_group", [0, 1], "made")


def test_peers_and_roots_are_world_ranks(calls: Plain) -> None:
    peers = {name: call["of_group"]["peer"] for name, call in calls.items() if name not in WORKS}

    assert {name: peer for name, peer in peers.items() if peer is not None} == PEERS


def test_the_timeout_is_known_if_the_kernel_has_it(calls: Plain) -> None:
    ends = {name: call["of_group"]["fails_at"] for name, call in calls.items() if name not in WORKS}

    assert {name for name, end in ends.items() if end is not None} == UNTIL
    assert all(time.time() < ends[name] < time.time() + TIMEOUT_S for name in UNTIL)


def test_an_awaited_work_is_named(calls: Plain) -> None:
    for name, what in WORKS.items():
        assert calls[name]["what"] == what
        assert "of_group" not in calls[name]


def test_the_mark_of_a_call_is_stable(calls: Plain, ranks: tuple[Child, Child]) -> None:
    """A call that waits for the store, in which the ranks look for each other, has no mark: torch polls there."""
    again = calls_of(read(ranks[0]))
    marks = {name: call["of_group"]["mark"] for name, call in calls.items() if name not in WORKS}

    assert marks.pop("new_group") == ""
    assert all(marks.values())
    assert {name: again[name]["of_group"]["mark"] for name in marks} == marks


def test_both_ranks_have_all_groups(ranks: tuple[Child, Child], names: Plain) -> None:
    for rank, child in enumerate(ranks):
        process = read(child)
        groups = {group.description: group.name for group in process["process_groups"]}

        assert groups == {"default_pg": "0", **names}
        assert (process["rank"], process["world_size"]) == (rank, 2)


ALONE = {
    "all_reduce": ("all_reduce of torch.distributed", "all_reduce", "default_pg"),
    "barrier": ("barrier of torch.distributed", "barrier", "default_pg"),
    "backward": ("collective of torch.distributed in a backward pass", "backward", "default_pg"),
    "wait_tensor": ("wait_tensor of torch.distributed", "wait_tensor", "of two"),
    "Work.wait of all_reduce": ("Work.wait of torch.distributed", "all_reduce", "of two"),
}
"""The only call of a process: its name, its operation, and its group."""


@pytest.mark.parametrize("name", ALONE)
def test_a_single_collective_has_the_group_and_timeout_of_gloo(tmp_path: Path, name: str) -> None:
    argv = [sys.executable, str(PROGRAM), str(free_port())]
    with (
        running([*argv, "0", name], {}, tmp_path / "0") as first,
        running([*argv, "1", name], {}, tmp_path / "1") as second,
    ):
        second.wait_for_line("ready", deadline_s=START_S)

        def waiting() -> Plain | None:
            return calls_of(read(first)).get("MainThread")

        call = wait_until(waiting, deadline_s=START_S, what=lambda: f"{name}: {read(first)['threads']}")

    of_group = call["of_group"]
    assert (call["what"], of_group["operation"], of_group["group"]["description"]) == ALONE[name]
    assert of_group["mark"]
    assert time.time() < of_group["fails_at"] < time.time() + TIMEOUT_S


def test_a_first_rank_waits_for_the_others(tmp_path: Path) -> None:
    port = free_port()
    with running([sys.executable, str(PROGRAM), str(port), "0"], {}, tmp_path / "log") as alone:

        def started() -> Plain | None:
            return calls_of(read(alone)).get("MainThread")

        call = wait_until(started, deadline_s=START_S, what=lambda: f"init_process_group: {read(alone)['threads']}")

    assert call["of_group"] == {
        "operation": "init_process_group",
        "group": {
            "library": "torch.distributed",
            "world": f"tcp://127.0.0.1:{port}",
            "name": "",
            "rank": 0,
            "ranks": [0, 1],
            "description": "default_pg",
        },
        "peer": None,
        "mark": "",
        "fails_at": None,
    }
