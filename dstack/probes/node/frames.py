"""The frames of another process's threads, as its interpreter keeps them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dstack.probes.node.layout import BLOCK_BYTES, BLOCK_STACK_BYTES, Layout
from dstack.probes.node.memory import Unreadable
from dstack.probes.node.objects import Objects
from dstack.probes.node.on_demand import on_demand

MAX_THREADS = 10_000
MAX_FRAMES = 1_000
MAX_STACK = 1 << 12
MAX_BLOCKS = 20
TRAMPOLINE = "<interpreter trampoline>"


@dataclass(frozen=True)
class MemoryFrame:
    """A frame; ``locals`` and ``stack`` are words, of which those of the stack may be left over from before."""

    file: str
    function: str
    locals: tuple[int, ...]
    stack: tuple[int, ...]
    blocks: int
    """How much of the stack belongs to live ``with`` and ``try`` blocks: that is never left over."""


@dataclass(frozen=True)
class MemoryCode:
    """What frames of the same code have in common; ``exceptions`` as :func:`exception_table` gives them."""

    file: str
    function: str
    locals: int
    stack_size: int
    exceptions: list[tuple[int, int, int]]

    def blocks_at(self, instruction: int) -> int:
        """How much of the stack is kept where this instruction would raise."""
        return max((depth for start, end, depth in self.exceptions if start <= instruction < end), default=0)


class Frames:
    """The threads of one process and their frames. Every method raises :class:`Unreadable`.

    ``runtime`` is where the process has its ``_PyRuntime``.
    """

    def __init__(self, objects: Objects, layout: Layout, runtime: int) -> None:
        self._objects = objects
        self._memory = objects.memory
        self._layout = layout
        self._runtime = runtime
        self._codes: dict[int, MemoryCode] = {}

    @on_demand
    def threads(self) -> dict[int, int]:
        """Where the interpreter keeps each thread, by the id Python has for it."""
        interpreter = self._memory.pointer(self._runtime + self._layout.runtime_interpreter)
        state = self._memory.pointer(interpreter + self._layout.interpreter_threads)
        found: dict[int, int] = {}
        while state and len(found) < MAX_THREADS:
            found[self._memory.pointer(state + self._layout.thread_id)] = state
            state = self._memory.pointer(state + self._layout.thread_next)
        return found

    def of(self, thread_id: int) -> Iterator[MemoryFrame]:
        """A thread's frames, leaf first."""
        if thread_id not in self.threads:
            raise Unreadable("the interpreter does not know the thread")
        address = self.threads[thread_id]
        for offset in self._layout.thread_frame:
            address = self._memory.pointer(address + offset)
        for _ in range(MAX_FRAMES):
            if not address:
                return
            code = self._memory.pointer(address + self._layout.frame_code)
            # Where C called Python there is one more frame, without code on 3.13 and with code of its own on 3.12.
            if self._objects.is_a(code, "code") and self._code(code).function != TRAMPOLINE:
                yield self._frame(address, code)
            address = self._memory.pointer(address + self._layout.frame_previous)

    def _frame(self, address: int, code_address: int) -> MemoryFrame:
        code = self._code(code_address)
        words = self._memory.pointers(address + self._layout.frame_locals, code.locals + code.stack_size)
        if self._layout.version == (3, 10):
            blocks = self._blocks_3_10(address)
        else:
            instruction = self._memory.pointer(address + self._layout.frame_instruction)
            blocks = code.blocks_at(instruction - code_address - self._layout.code_start)
        return MemoryFrame(
            file=code.file,
            function=code.function,
            locals=words[: code.locals],
            stack=words[code.locals :],
            blocks=min(max(blocks, 0), code.stack_size),
        )

    def _code(self, address: int) -> MemoryCode:
        if address not in self._codes:
            self._codes[address] = self._read_code(address)
        return self._codes[address]

    def _read_code(self, address: int) -> MemoryCode:
        layout, memory = self._layout, self._memory
        names = sum(len(self._objects.items(memory.pointer(address + offset))) for offset in layout.code_names)
        stack_size = memory.int32(address + layout.code_stack_size)
        if not 0 <= stack_size <= MAX_STACK or names > MAX_STACK:
            raise Unreadable(f"a frame of {names} locals and a stack of {stack_size}")
        exceptions = layout.code_exceptions
        return MemoryCode(
            file=self._objects.text(memory.pointer(address + layout.code_file)),
            function=self._objects.text(memory.pointer(address + layout.code_function)),
            locals=names,
            stack_size=stack_size,
            exceptions=exception_table(self._objects.data(memory.pointer(address + exceptions))) if exceptions else [],
        )

    def _blocks_3_10(self, address: int) -> int:
        """From the stack of blocks, each of which has noted how much stack there was before it."""
        first = address + self._layout.frame_locals - BLOCK_STACK_BYTES
        count = self._memory.int32(first - 8)
        if not 0 <= count <= MAX_BLOCKS:
            raise Unreadable(f"a frame with {count} blocks")
        return max((self._memory.int32(first + BLOCK_BYTES * index + 8) for index in range(count)), default=0)


def exception_table(table: bytes) -> list[tuple[int, int, int]]:
    """Entries of a code object's table: first instruction, the one after the last, and the depth of the stack.

    From CPython 3.11 on: numbers of six bits a byte, highest first, and a bit that says that more follow.
    """
    numbers, value = [], 0
    for byte in table:
        value = value << 6 | byte & 0x3F
        if not byte & 0x40:
            numbers.append(value)
            value = 0
    rows = zip(*[iter(numbers)] * 4, strict=False)
    return [(2 * start, 2 * (start + length), depth >> 1) for start, length, _, depth in rows]
