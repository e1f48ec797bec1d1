"""Dumps of flight recorders are found on a node by their names, and read if they are recent and of a user of it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from dstack.observed.ledgers import RecorderDump
from dstack.probes.node import recorder_dumps
from dstack.probes.node.procfs import proc
from dstack.probes.node.recorder_dumps import MAX_BYTES, RecorderDumps
from dstack.probes.node.stacks.origins import Origins
from dstack.probes.node.stacks.source_files import SourceFiles
from dstack.probes.node.stacks.table import StackTable
from dstack.probes.node.wire import DumpRequest
from tests.unit.libraries.torch.test_dumps import DATA

RUN_S = 100.0
"""How long the job of these files has run."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Only files in this folder, whatever dumps this machine has."""
    monkeypatch.setattr(recorder_dumps, "_prefixes", lambda _: [f"{tmp_path}/trace_"])
    for rank, data in enumerate(DATA):
        (tmp_path / f"trace_{rank}").write_bytes(data)
    return tmp_path


def read(dumps: RecorderDumps | None = None, table: StackTable | None = None) -> list[RecorderDump]:
    table = table or StackTable(Origins(), SourceFiles())
    request: DumpRequest = {"since": time.time() - RUN_S, "prefixes": []}
    found = (dumps or RecorderDumps()).read([os.getpid()], request, table, time.monotonic() + 60)
    return sorted(found, key=lambda one: one.rank)


def test_files_are_read_with_their_stacks(folder: Path) -> None:
    table = StackTable(Origins(), SourceFiles())
    found = read(table=table)

    assert [(one.rank, one.path, one.problem) for one in found] == [(n, f"{folder}/trace_{n}", None) for n in range(4)]
    assert all(one.has_sound_ledgers for one in found)
    last = found[0].collectives[found[0].ledgers[0].calls[-1]]
    frames = [table.frames[at] for at in table.stacks[last.stack]]
    assert [(one.file, one.line) for one in frames if one.origin == "user"] == [("/app/train.py", 17)]


def test_no_source_is_read_for_a_file_that_a_dump_names(folder: Path) -> None:
    """Whoever wrote it may name any file, which this user may read."""
    here = __file__.encode()
    for rank, data in enumerate(DATA):
        named = data.replace(b"\r\x00\x00\x00/app/train.py", len(here).to_bytes(4, "little") + here)
        (folder / f"trace_{rank}").write_bytes(named)
    table = StackTable(Origins(), SourceFiles())

    assert len(read(table=table)) == 4
    assert any(one.file == __file__ for one in table.frames)
    assert not table.sources


def test_an_old_file_and_one_of_another_name_are_left_out(folder: Path) -> None:
    old = time.time() - RUN_S - 1
    os.utime(folder / "trace_0", (old, old))
    (folder / "trace_1").rename(folder / "trace_1.pipe")
    (folder / "trace_2").rename(folder / "other_2")

    assert [one.rank for one in read()] == [3]


def test_only_regular_files_of_the_users_are_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "trace_0").unlink()
    (folder / "trace_0").symlink_to(folder / "trace_1")
    (folder / "trace_2").unlink()
    os.mkfifo(folder / "trace_2")
    assert [one.rank for one in read()] == [1, 3]

    monkeypatch.setattr(proc, "owner", lambda _: os.getuid() + 1)
    assert not read()


def test_a_file_that_is_no_dump_is_named(folder: Path) -> None:
    (folder / "trace_0").write_bytes(DATA[0][:100])
    with (folder / "trace_1").open("wb") as file:
        file.truncate(MAX_BYTES + 1)

    assert [one.problem for one in read()] == ["malformed", "too large", None, None]


def test_a_file_is_decoded_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dumps = RecorderDumps()
    first = read(dumps)
    decoded: list[int] = []
    monkeypatch.setattr(recorder_dumps, "content", lambda _, rank: decoded.append(rank))
    assert read(dumps) == first
    assert not decoded

    (folder / "trace_3").write_bytes(DATA[3] + b"more")
    read(dumps)
    assert decoded == [3]


def test_prefixes_are_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proc, "working_directory", lambda _: "/app")
    of = {
        1: {"TORCH_FR_DUMP_TEMP_FILE": "/a/fr_", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/b/nccl_", "HOME": "/root"},
        2: {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "traces/nccl_"},
        3: {"XDG_CACHE_HOME": "/cache", "HOME": "/root"},
        4: {"HOME": "/root"},
        5: {},
    }
    monkeypatch.setattr(proc, "variables", lambda pid, _: of[pid])

    assert list(recorder_dumps._prefixes(of)) == [
        "/tmp/nccl_trace_rank_",
        "/a/fr_",
        "/app/traces/nccl_",
        "/cache/torch/comm_lib_trace_rank_",
        "/root/.cache/torch/comm_lib_trace_rank_",
        "/tmp/.cache/torch/comm_lib_trace_rank_",
    ]
