"""Only source files that a process or a snapshot names are opened."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dstack.files.snapshot_file import save
from dstack.probes.node.stacks.origins import Origins
from dstack.probes.node.stacks.source_files import MAX_BYTES, SourceFiles, find_source, read_source
from dstack.probes.node.stacks.table import StackTable
from dstack.probes.node.thread_stacks import CodePosition, TextFrame
from tests.fuzzing.hostile_text import naming
from tests.paths import ROOT
from tests.tui.sources import recorded

SHADOW = b"root:$y$j9T$:19000:0:99999:7:::\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files that must not be opened, also under names of programs."""
    (tmp_path / "good.py").write_bytes(b"one\r\ntwo\x0c\nthree \xe9\n")
    (tmp_path / "-x.py").write_text("print()\n")
    (tmp_path / "shadow").write_bytes(SHADOW)
    (tmp_path / "id_rsa.pem").write_bytes(SHADOW)
    (tmp_path / "shadow.py").symlink_to("shadow")
    (tmp_path / "link.py").symlink_to("good.py")
    (tmp_path / "loop.py").symlink_to("loop.py")
    (tmp_path / "zero.py").symlink_to("/dev/zero")
    (tmp_path / "memory.py").symlink_to("/proc/self/mem")
    (tmp_path / "folder.py").mkdir()
    os.mkfifo(tmp_path / "fifo.py")
    with (tmp_path / "huge.py").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    return tmp_path


NO_SOURCES = [
    *("shadow", "shadow.py", "id_rsa.pem", "loop.py", "zero.py", "memory.py", "folder.py", "fifo.py", "huge.py"),
    *("/dev/zero", "/dev/tty", "/proc/self/mem", "/proc/self/environ", "/etc/shadow", "../../../etc/passwd"),
    *("", ".", "/", "a\0b.py", "x" * 10_000 + ".py", "<stdin>", "<frozen importlib>", "caf\udce9.py"),
]


@pytest.mark.parametrize("name", NO_SOURCES, ids=lambda name: repr(name[:20]))
def test_files_that_are_no_source_are_not_opened(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []
    real_open = os.open

    def noted(path: str, flags: int, *others: int) -> int:
        opened.append(flags)
        return real_open(path, flags, *others)

    monkeypatch.setattr(os, "open", noted)
    path = os.path.join(folder, name)

    assert read_source(path) == []
    assert find_source(path) is None
    assert all(flags & os.O_PATH for flags in opened)


def test_source_is_read_by_the_lines_that_python_counts(folder: Path) -> None:
    assert read_source(str(folder / "good.py")) == ["one", "two\x0c", "three \ufffd", ""]
    assert read_source(str(folder / "link.py"))[0] == "one"


def test_source_is_found_by_its_real_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)

    for name in ("good.py", "link.py", "./folder.py/../good.py"):
        assert find_source(name) == f"{folder}/good.py"
    assert find_source("-x.py") == f"{folder}/-x.py"


def test_a_file_replaced_after_its_check_is_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "good.py"
    real_fstat = os.fstat

    def swapped(handle: int) -> os.stat_result:
        status = real_fstat(handle)
        path.unlink(missing_ok=True)
        path.symlink_to("shadow")
        return status

    monkeypatch.setattr(os, "fstat", swapped)

    assert SHADOW.decode().strip() not in read_source(str(path))


def test_a_process_cannot_make_its_node_read_other_files(folder: Path) -> None:
    table = StackTable(Origins(), SourceFiles())
    frames = [TextFrame(CodePosition(name, "f", "f", 1)) for name in [*NO_SOURCES, "good.py"]]

    table.add(frames, str(folder))

    assert {file for file, lines in table.sources.items() if lines} == {"good.py"}


AUDIT = """
import json, sys
opened = []
sys.addaudithook(lambda event, arguments: opened.append(str(arguments[0])) if event == "open" else None)
"""
COMMANDS = """
from dstack.cli import main
for arguments in (["show", sys.argv[1]], ["show", "--json", sys.argv[1]], ["check", sys.argv[1]]):
    try:
        main(arguments)
    except SystemExit:
        pass
"""
VIEWS = """
import asyncio
from dstack.files.snapshot_file import load
from dstack.tui.snapshot_sources import Files
from dstack.tui.app import VIEWS
from tests.tui.pilots import running
async def walk():
    async with running(Files("file", [load(sys.argv[1])])) as (app, pilot):
        for number, _ in enumerate(VIEWS, 1):
            await pilot.press(str(number), "l", "j")
asyncio.run(walk())
"""


@pytest.mark.parametrize("program", [COMMANDS, VIEWS], ids=["commands", "views"])
def test_showing_a_snapshot_opens_no_file_that_it_names(folder: Path, program: str) -> None:
    named = [str(folder / "good.py"), str(folder / "fifo.py"), "good.py", "/etc/shadow", "/proc/self/mem"]
    file = folder / "stranger.json"
    save(naming(recorded("queue-ray-2.60"), named), file)

    done = subprocess.run(
        [sys.executable, "-c", f"{AUDIT}{program}\nprint(json.dumps(opened), file=sys.stderr)", str(file)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        timeout=60,
        check=True,
    )

    opened = done.stderr.decode().splitlines()[-1]
    assert str(file) in opened
    assert not [name for name in named if f'"{name}"' in opened]


def test_a_file_is_read_again_in_the_next_snapshot_if_it_has_changed(tmp_path: Path) -> None:
    files, path = SourceFiles(), tmp_path / "program.py"
    path.write_text("first = 1\n")
    before = files.file(str(path))
    assert before.lines[0] == "first = 1"

    path.write_text("second = 2\n")
    assert files.file(str(path)) is before
    files.begin_snapshot()
    after = files.file(str(path))
    files.begin_snapshot()

    assert after.lines[0] == "second = 2"
    assert files.file(str(path)) is after
    path.unlink()
    files.begin_snapshot()
    assert files.file(str(path)).lines == []
