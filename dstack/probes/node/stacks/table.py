"""Tables with every distinct frame and stack of a node once, and the source lines around user frames."""

from __future__ import annotations

import os
from collections.abc import Sequence

from dstack.observed.processes import Frame
from dstack.probes.node.redaction import masked_source
from dstack.probes.node.stacks.loops import NOTHING, FoundLoop, Loops
from dstack.probes.node.stacks.next_calls import Next, NextCalls
from dstack.probes.node.stacks.origins import Origins
from dstack.probes.node.stacks.source_lines import read_source
from dstack.probes.node.thread_stacks import AnyFrame, CodePosition

CONTEXT_LINES = 2
MAX_LINE = 160
ENDS = 2_000
"""The frames that are kept at each end of a stack with more than twice as many."""


class StackTable:
    """Distinct frames and stacks of one node, and the source lines around user frames.

    Without ``reads_source`` it reads no source file, so it has neither source lines nor loops.
    """

    def __init__(
        self,
        origins: Origins,
        loops: Loops | None = None,
        next_calls: NextCalls | None = None,
        *,
        reads_source: bool = True,
    ) -> None:
        self._origins = origins
        self._loops = loops or Loops()
        self._next_calls = next_calls or NextCalls()
        self._reads_source = reads_source
        self._positions: dict[tuple[CodePosition, str], int] = {}
        self._frames: dict[tuple[str, str, int], int] = {}
        self._stacks: dict[tuple[int, ...], int] = {}
        self.frames: list[Frame] = []
        self.stacks: list[tuple[int, ...]] = []
        self.sources: dict[str, dict[int, str]] = {}
        self._files: dict[str, list[str]] = {}

    def add(self, frames: Sequence[AnyFrame], cwd: str) -> int:
        """The index of the stack of these frames, leaf first. Of a very deep one, both ends are kept."""
        return self.add_positions([frame.position for frame in frames], cwd)

    def add_positions(self, positions: list[CodePosition], cwd: str) -> int:
        """As :meth:`add`."""
        if (left_out := len(positions) - 2 * ENDS) > 0:
            positions[ENDS:-ENDS] = [CodePosition("", "", f"({left_out} frames left out)", 0)]
        stack = tuple(self._frame(position, cwd) for position in positions)
        index = self._stacks.setdefault(stack, len(self.stacks))
        if index == len(self.stacks):
            self.stacks.append(stack)
        return index

    def _frame(self, position: CodePosition, cwd: str) -> int:
        index = self._positions.get((position, cwd))
        if index is None:
            index = self._positions[position, cwd] = self._new_frame(position, cwd)
        return index

    def _new_frame(self, position: CodePosition, cwd: str) -> int:
        function, file, line = key = (position.qualified, position.module or position.file, position.line)
        if key not in self._frames:
            origin = self._origins.of_position(position)
            loop = NOTHING if position.module else self._loop_at(file, line, cwd)
            following = self._next_at(file, line, cwd) if origin == "user" else Next()
            if origin == "user":
                self._keep_source(file, line, cwd)
            self._frames[key] = len(self.frames)
            self.frames.append(
                Frame(
                    function=function,
                    file=file,
                    line=line,
                    origin=origin,
                    only_polls=loop.only_polls,
                    body=loop.body,
                    stops=following.stops,
                    may_fail=following.may_fail,
                    may_stop=following.may_stop,
                )
            )
        return self._frames[key]

    def _loop_at(self, file: str, line: int, cwd: str) -> FoundLoop:
        if not self._reads_source:
            return NOTHING
        return self._loops.at(os.path.join(cwd, file), line, lambda: self._source(file, cwd))

    def _next_at(self, file: str, line: int, cwd: str) -> Next:
        if not self._reads_source:
            return Next()
        return self._next_calls.at(os.path.join(cwd, file), line, lambda: self._source(file, cwd))

    def _keep_source(self, file: str, line: int, cwd: str) -> None:
        if not self._reads_source:
            return
        lines = self._source(file, cwd)
        for number in range(max(1, line - CONTEXT_LINES), min(len(lines), line + CONTEXT_LINES) + 1):
            self.sources.setdefault(file, {})[number] = masked_source(lines[number - 1][:MAX_LINE])

    def _source(self, file: str, cwd: str) -> list[str]:
        if file not in self._files:
            self._files[file] = read_source(os.path.join(cwd, file))
        return self._files[file]
