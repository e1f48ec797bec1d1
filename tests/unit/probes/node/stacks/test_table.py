"""Frames and stacks occur once in the table of a node; very deep stacks keep both ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from dstack.observed.processes import Frame
from dstack.probes.node.stacks import source_files
from dstack.probes.node.stacks import table as module
from dstack.probes.node.stacks.origins import Origins
from dstack.probes.node.stacks.source_files import SourceFiles
from dstack.probes.node.stacks.table import ENDS, StackTable
from dstack.probes.node.thread_stacks import CodePosition, TextFrame


def frames(*lines: int, file: str = "/srv/app.py") -> list[TextFrame]:
    return [TextFrame(CodePosition(file, "f", "C.f", line)) for line in lines]


@pytest.fixture
def table() -> StackTable:
    return StackTable(Origins(), SourceFiles())


def lines_of(table: StackTable, stack: int) -> list[int]:
    return [table.frames[index].line for index in table.stacks[stack]]


def test_the_same_stack_is_the_same_entry(table: StackTable) -> None:
    first, again, other, empty = (table.add(one, "/") for one in (frames(1, 2), frames(1, 2), frames(2, 1), []))

    assert first == again
    assert len({first, other, empty}) == 3
    assert (lines_of(table, first), lines_of(table, other), lines_of(table, empty)) == ([1, 2], [2, 1], [])
    assert table.frames == [Frame(function="C.f", file="/srv/app.py", line=line) for line in (1, 2)]


def test_a_frame_of_a_shared_library_has_its_library(table: StackTable) -> None:
    table.add([TextFrame(CodePosition("a.c", "f", "f", 0, "/lib/libx.so"))], "/")

    assert table.frames == [Frame(function="f", file="/lib/libx.so", line=0, origin="library")]


@pytest.mark.parametrize("count", [1, 2 * ENDS - 1, 2 * ENDS])
def test_a_stack_up_to_the_bound_is_complete(table: StackTable, count: int) -> None:
    assert lines_of(table, table.add(frames(*range(1, count + 1)), "/")) == [*range(1, count + 1)]


@pytest.mark.parametrize("count", [2 * ENDS + 1, 100_000])
def test_a_very_deep_stack_keeps_both_ends_and_a_count_of_the_others(table: StackTable, count: int) -> None:
    stack = table.add(frames(*range(1, count + 1)), "/")

    kept = lines_of(table, stack)
    (between,) = [table.frames[index] for index in table.stacks[stack] if not table.frames[index].file]
    assert kept == [*range(1, ENDS + 1), 0, *range(count - ENDS + 1, count + 1)]
    assert between == Frame(function=f"({count - 2 * ENDS} frames left out)", file="", line=0, origin="stdlib")


def test_deep_stacks_of_different_depths_differ(table: StackTable) -> None:
    one, other = (table.add(frames(*[7] * count), "/") for count in (5_000, 5_001))

    assert one != other
    assert len(table.frames) == 3


def test_a_deep_recursive_stack_is_not_slow(table: StackTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recursion has few positions, so its source is read once."""
    reads: list[str] = []
    monkeypatch.setattr(source_files, "read_source", lambda path: reads.append(path) or ["text"])  # type: ignore[func-returns-value]

    for count in range(1, 50):
        table.add(frames(*[1, 2] * count), "/")

    assert reads == ["/srv/app.py"]
    assert len(table.frames) == 2


def test_the_lines_around_a_user_frame_are_stored_redacted_and_cut(table: StackTable, tmp_path: Path) -> None:
    text = ["first", 'password = "hidden"', "third", "x" * 500, "fifth", "sixth", "seventh"]
    (tmp_path / "app.py").write_text("\n".join(text))

    table.add(frames(3, 99, file="app.py"), str(tmp_path))

    assert table.sources == {
        "app.py": {1: "first", 2: 'password = "***"', 3: "third", 4: "x" * module.MAX_LINE, 5: "fifth"}
    }


def test_the_same_file_name_in_two_directories_is_read_in_the_first(table: StackTable, tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "app.py").write_text(name)

    stacks = [table.add(frames(1, file="app.py"), str(tmp_path / name)) for name in ("one", "other")]

    assert stacks[0] == stacks[1]
    assert table.sources == {"app.py": {1: "one"}}
