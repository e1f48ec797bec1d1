"""Tables with every distinct frame and stack of a node once, and the source lines around user frames."""

from __future__ import annotations

import os
from collections.abc import Sequence

from dstack.observed.processes import Frame
from dstack.probes.node.redaction import masked_source
from dstack.probes.node.stacks.loops import NOTHING
from dstack.probes.node.stacks.next_calls import Next
from dstack.probes.node.stacks.origins import Origins
from dstack.probes.node.stacks.source_files import SourceFiles
from dstack.probes.node.thread_stacks import AnyFrame, CodePosition

CONTEXT_LINES = 2
MAX_LINE = 160
ENDS = 2_000
"""The frames that are kept at each end of a stack with more than twice as many."""


class StackTable:
    """Distinct frames and stacks of one node, and the source lines around user frames.

    Without ``files`` it reads no source file, so it has neither source lines nor loops.
    """

    def __init__(self, origins: Origins, files: SourceFiles | None) -> None:
        self._origins = origins
        self._files = files
        self._positions: dict[tuple[CodePosition, str | None], int] = {}
        self._frames: dict[tuple[str, str, int], int] = {}
        self._stacks: dict[tuple[int, ...], int] = {}
        self.frames: list[Frame] = []
        self.stacks: list[tuple[int, ...]] = []
        self.sources: dict[str, dict[int, str]] = {}

    def add(self, frames: Sequence[AnyFrame], cwd: str) -> int:
        """The index of the stack of these frames, leaf first. Of a very deep one, both ends are kept."""
        return self.add_positions([frame.position for frame in frames], cwd)

    def add_positions(self, positions: list[CodePosition], cwd: str | None) -> int:
        """As :meth:`add`. Without a directory, as of positions that a file states, no source is read for new frames."""
        if (left_out := len(positions) - 2 * ENDS) > 0:
            positions[ENDS:-ENDS] = [CodePosition("", "", f"({left_out} frames left out)", 0)]
        stack = tuple(self._frame(position, cwd) for position in positions)
        index = self._stacks.setdefault(stack, len(self.stacks))
        if index == len(self.stacks):
            self.stacks.append(stack)
        return index

    def _frame(self, position: CodePosition, cwd: str | None) -> int:
        index = self._positions.get((position, cwd))
        if index is None:
            index = self._positions[position, cwd] = self._new_frame(position, cwd)
        return index

    def _new_frame(self, position: CodePosition, cwd: str | None) -> int:
        _, file, _ = key = (position.qualified, position.module or position.file, position.line)
        if key not in self._frames:
            self._frames[key] = len(self.frames)
            self.frames.append(self._frame_of(position, file, cwd))
        return self._frames[key]

    def _frame_of(self, position: CodePosition, file: str, cwd: str | None) -> Frame:
        origin, line = self._origins.of_position(position), position.line
        source = self._files.file(os.path.join(cwd, file)) if self._files and cwd is not None else None
        loop = source.loop_at(line) if source and not position.module else NOTHING
        following = source.next_at(line) if source and origin == "user" else Next()
        if source and origin == "user":
            self._keep_lines(file, source.lines, line)
        return Frame(
            function=position.qualified,
            file=file,
            line=line,
            origin=origin,
            only_polls=loop.only_polls,
            body=loop.body,
            stops=following.stops,
            may_fail=following.may_fail,
            may_stop=following.may_stop,
        )

    def _keep_lines(self, file: str, lines: Sequence[str], line: int) -> None:
        for number in range(max(1, line - CONTEXT_LINES), min(len(lines), line + CONTEXT_LINES) + 1):
            self.sources.setdefault(file, {})[number] = masked_source(lines[number - 1][:MAX_LINE])
