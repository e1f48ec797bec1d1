"""Tables with every distinct frame and stack of a node once, and the source lines around user frames."""

from __future__ import annotations

import os
from collections.abc import Sequence

from dstack.probes.node.redaction import masked_source
from dstack.probes.node.stacks.loops import Loops
from dstack.probes.node.stacks.origins import Origins
from dstack.probes.node.stacks.source_lines import read_source
from dstack.probes.node.threads import Frame, Position
from dstack.probes.node.wire import FrameData

CONTEXT_LINES = 2
MAX_LINE = 160
ENDS = 2_000
"""The frames that are kept at each end of a stack with more than twice as many."""


class StackTable:
    """Distinct frames and stacks of one node, and the source lines around user frames.

    Without ``reads_source`` it reads no source file, so it has neither source lines nor loops.
    """

    def __init__(self, origins: Origins, loops: Loops | None = None, *, reads_source: bool = True) -> None:
        self._origins = origins
        self._loops = loops or Loops()
        self._reads_source = reads_source
        self._positions: dict[tuple[Position, str], int] = {}
        self._frames: dict[tuple[str, str, int], int] = {}
        self._stacks: dict[tuple[int, ...], int] = {}
        self.frames: list[FrameData] = []
        self.stacks: list[list[int]] = []
        self.sources: dict[str, dict[int, str]] = {}
        self._files: dict[str, list[str]] = {}

    def add(self, frames: Sequence[Frame], cwd: str) -> int:
        """The index of the stack of these frames, leaf first. Of a very deep one, both ends are kept."""
        return self.add_positions([frame.position for frame in frames], cwd)

    def add_positions(self, positions: list[Position], cwd: str) -> int:
        """As :meth:`add`."""
        if (left_out := len(positions) - 2 * ENDS) > 0:
            positions[ENDS:-ENDS] = [Position("", "", f"({left_out} frames left out)", 0)]
        indices = [self._frame(position, cwd) for position in positions]
        index = self._stacks.setdefault(tuple(indices), len(self.stacks))
        if index == len(self.stacks):
            self.stacks.append(indices)
        return index

    def _frame(self, position: Position, cwd: str) -> int:
        index = self._positions.get((position, cwd))
        if index is None:
            index = self._positions[position, cwd] = self._new_frame(position, cwd)
        return index

    def _new_frame(self, position: Position, cwd: str) -> int:
        function, file, line = key = (position.qualified, position.module or position.file, position.line)
        if key not in self._frames:
            origin = self._origins.of_position(position)
            self._frames[key] = len(self.frames)
            frame: FrameData = {"function": function, "file": file, "line": line, "origin": origin}
            self.frames.append(frame)
            if not self._reads_source:
                return self._frames[key]
            if origin == "user":
                self._keep_source(file, line, cwd)
            path = os.path.join(cwd, file)
            if origin in ("user", "ray") and (loop := self._loops.at(path, line, lambda: self._source(file, cwd))):
                frame["loop"] = loop
        return self._frames[key]

    def _keep_source(self, file: str, line: int, cwd: str) -> None:
        lines = self._source(file, cwd)
        for number in range(max(1, line - CONTEXT_LINES), min(len(lines), line + CONTEXT_LINES) + 1):
            self.sources.setdefault(file, {})[number] = masked_source(lines[number - 1][:MAX_LINE])

    def _source(self, file: str, cwd: str) -> list[str]:
        if file not in self._files:
            self._files[file] = read_source(os.path.join(cwd, file))
        return self._files[file]
