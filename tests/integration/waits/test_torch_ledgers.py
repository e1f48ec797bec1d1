"""The ledgers of process groups equal what torch itself has recorded, and its counters are where its code says."""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dstack.libraries.torch.backends import AFTER_VTABLE, NAMES, Backend, TorchLibraries
from dstack.libraries.torch.recorder import FlightRecorder
from dstack.observed.ledgers import MAX_RECORDED
from dstack.probes.node.cpython.memory import open_memory
from dstack.probes.node.elf import Elf
from dstack.probes.node.procfs import proc
from tests.integration.waits.test_torch_groups import START_S, free_port
from tests.paths import PROGRAMS
from tests.processes import Child, running
from tests.sampling import Plain, sample, target

pytestmark = pytest.mark.libraries

PROGRAM = PROGRAMS / "processes/torch_ledgers.py"
TYPES = {"Float": "float32", "Long": "int64", "BFloat16": "bfloat16"}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Child]]:
    logs, argv = tmp_path_factory.mktemp("ranks"), [sys.executable, str(PROGRAM), str(free_port())]
    with (
        running([*argv, "0"], {}, logs / "0") as first,
        running([*argv, "1"], {}, logs / "1") as second,
        running([*argv, "2"], {}, logs / "2") as third,
    ):
        for child in (first, second, third):
            child.wait_for_line("ready", deadline_s=START_S)
        yield [first, second, third]


@pytest.mark.parametrize("rank", range(3))
def test_a_ledger_equals_what_torch_has_recorded(ranks: list[Child], rank: int) -> None:
    line = ranks[rank].line("[")
    assert line is not None
    entries: list[Plain] = json.loads(line)
    answer = sample(target(ranks[rank].pid))
    process: Plain = answer["processes"]["w"]

    for ledger in process["ledgers"]:
        name = process["process_groups"][ledger["group"]].name
        own = [one for one in entries if one["process_group"][0] == name]
        shown = own[-len(ledger["calls"]) :]
        assert ledger["entered"] == ledger["recorded"] == own[-1]["collective_seq_id"] == len(own)
        assert len(ledger["calls"]) == min(len(own), len(shown))
        assert ledger["open"] == [one["collective_seq_id"] for one in shown if not one["retired"]]
        assert ledger["entered_at"] == pytest.approx(own[-1]["time_created_ns"] / 1e9)
        for call, entry in zip(ledger["calls"], shown, strict=True):
            found = process["collectives"][call]
            assert f"gloo:{found['operation']}" == entry["profiling_name"]
            assert found["sizes"] == entry["input_sizes"]
            assert found["types"] == [TYPES[one] for one in entry["input_dtypes"]]
            lines = [answer["frames"][at]["line"] for at in answer["stacks"][found["stack"]]]
            assert lines == [frame["line"] for frame in entry["frames"]]
    counts = Counter(one["process_group"][0] for one in entries)
    assert {len(one["calls"]) for one in process["ledgers"]} == {
        min(counts["0"], MAX_RECORDED - counts["1"]),
        counts["1"],
    } - {0}


def test_a_ledger_costs_little(ranks: list[Child]) -> None:
    """Both the counters and the last 256 collectives of a rank, with torch's libraries known."""
    with open_memory(ranks[0].pid, keeps_pages=True) as memory:
        (gloo, *_) = TorchLibraries().backends(memory)
    began, rounds = time.process_time(), 20
    for _ in range(rounds):
        with open_memory(ranks[0].pid, keeps_pages=True) as memory:
            assert len(FlightRecorder(memory, gloo.recorder).last()) == MAX_RECORDED
    print("ms", 1e3 * (time.process_time() - began) / rounds)


def backends() -> dict[str, Backend]:
    importlib.import_module("torch")
    with open_memory(os.getpid()) as memory:
        return {one.name: one for one in TorchLibraries().backends(memory)}


def loaded(name: str) -> tuple[ctypes.CDLL, int, Path]:
    """A library of this process, where it begins in memory, and its file."""
    mapped = proc.mapped_files(os.getpid()).values()
    found = next(one for one in mapped if one.path.endswith(NAMES[name].library))  # type: ignore[index]
    return ctypes.CDLL(found.path), found.start, Path(found.path)


@pytest.mark.parametrize("name", ["gloo", "nccl"])
def test_the_counter_is_what_torchs_function_returns(name: str) -> None:
    """It is called on an object that has nothing but the counter; NCCL needs a wheel for CUDA, but no GPU."""
    found = backends().get(name)
    if found is None:
        pytest.skip("this torch has no NCCL: run it with a wheel for CUDA")
    library, base, _ = loaded(name)
    address = ctypes.create_string_buffer(1 << 14)
    here = ctypes.addressof(address)
    ctypes.c_uint32.from_address(here + found.counter).value = 1_234
    function: Any = getattr(library, NAMES[name].counter.decode())  # type: ignore[index]
    function.restype, function.argtypes = ctypes.c_uint32, [ctypes.c_void_p]
    if name == "nccl":
        assert function(here) == 1_234
    with open_memory(os.getpid()) as memory:
        assert found.count(memory, here) == 1_234
    assert found.vtable - AFTER_VTABLE > base


def test_the_recorder_of_nccl_is_found_and_empty() -> None:
    found = backends().get("nccl")
    if found is None:
        pytest.skip("this torch has no NCCL: run it with a wheel for CUDA")
    _, base, path = loaded("nccl")
    get = b"_ZN4c10d14FlightRecorderIN3c104cuda9CUDAEventEE3getEv"
    with path.open("rb") as file:
        function = ctypes.CFUNCTYPE(ctypes.c_void_p)(base + Elf(file).symbol(b".symtab", get)[1])
    recorder = function()
    with open_memory(os.getpid()) as memory:
        assert memory.pointer(found.recorder) == recorder
        assert FlightRecorder(memory, found.recorder).last() == []
