"""The frames of another process's threads and suspended coroutines, as its interpreter keeps them."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dstack.probes.node.cpython.cached_property import on_demand
from dstack.probes.node.cpython.code_objects import Code
from dstack.probes.node.cpython.coroutine_layout import SUSPENDED_STATES
from dstack.probes.node.cpython.layout import BLOCK_BYTES, BLOCK_STACK_BYTES, Layout
from dstack.probes.node.cpython.memory import Unreadable
from dstack.probes.node.cpython.objects import BOUND_TO, Objects, reference
from dstack.probes.node.waits.known_waits import RawFrame, function_of

MAX_THREADS = 10_000
MAX_FRAMES = 1_000
MAX_BLOCKS = 20
STATE_3_10 = 4
"""CPython 3.10: a frame's state stands so many bytes before its blocks, after their number."""
TRAMPOLINE = "<interpreter trampoline>"


@dataclass(frozen=True)
class MemoryFrame:
    """A frame; ``locals`` and ``stack`` are words, of which those of a running stack may be left over from before.

    ``instruction`` is the offset of the instruction in hand, ``blocks`` how much of the stack belongs to live ``with``
    and ``try`` blocks: that is never left over. ``qualified`` is the function's qualified name where it is known.
    """

    code: Code
    instruction: int
    locals: tuple[int, ...]
    stack: tuple[int, ...]
    blocks: int
    qualified: str

    @property
    def file(self) -> str:
        """The path of its code's file."""
        return self.code.file

    @property
    def function(self) -> str:
        """The plain name of its function."""
        return self.code.function

    @property
    def line(self) -> int:
        """The line it is on."""
        return self.code.line_at(self.instruction)

    def local(self, name: str) -> int:
        """The address of what a local holds, 0 where it holds nothing or there is none of that name."""
        return dict(zip(self.code.names, self.locals, strict=False)).get(name, 0)


class Frames:
    """The threads of one process, and the frames of these and of coroutines. All methods raise :class:`Unreadable`.

    ``runtime`` is where the process has its ``_PyRuntime``.
    """

    def __init__(self, objects: Objects, layout: Layout, runtime: int) -> None:
        self._objects = objects
        self._memory = objects.memory
        self._layout = layout
        self._runtime = runtime
        self._codes: dict[int, Code] = {}

    @on_demand
    def interpreter(self) -> int:
        """Where the main interpreter's state is."""
        return self._memory.pointer(self._runtime + self._layout.runtime_interpreter)

    @on_demand
    def threads(self) -> dict[int, int]:
        """Where the interpreter keeps each thread, by the id Python has for it."""
        state = self._memory.pointer(self.interpreter + self._layout.interpreter_threads)
        ids: dict[int, int] = {}
        while state and state not in ids and len(ids) < MAX_THREADS:
            ids[state] = self._memory.pointer(state + self._layout.thread_id)
            state = self._memory.pointer(state + self._layout.thread_next)
        return {thread_id: state for state, thread_id in ids.items()}

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
            code = reference(self._memory.pointer(address + self._layout.frame_code))
            # Where C called Python there is one more frame, without code from 3.13 on, with code of its own on 3.12.
            if self._objects.is_a(code, "code") and self.code(code).function != TRAMPOLINE:
                yield self._frame(address, code)
            address = self._memory.pointer(address + self._layout.frame_previous)

    def are(self, thread_id: int, shown: Sequence[RawFrame]) -> bool:
        """Whether a thread's frames are these of py-spy's, on the same lines and with the same objects as locals."""
        now = list(self.of(thread_id))
        return len(now) == len(shown) and all(map(_is_same, shown, now))

    def suspended(self, generator: int) -> MemoryFrame | None:
        """The frame of a coroutine or generator that has begun and is suspended, with no more than its live stack.

        None of one that runs, has ended or has not begun.
        """
        layout = self._layout.coroutines
        address = generator + layout.generator_frame
        if self._layout.version == (3, 10):
            address = self._memory.pointer(address)
            if not address:
                return None
            self._objects.expect(address, "frame")
        if self._state(generator, address) not in SUSPENDED_STATES[self._layout.version]:
            return None
        code = reference(self._memory.pointer(address + self._layout.frame_code))
        self._objects.expect(code, "code")
        name = self._objects.text(self._memory.pointer(generator + layout.generator_qualname))
        return self._frame(address, code, self._stack_top(address), name)

    def _stack_top(self, frame: int) -> int:
        """How many words of a suspended frame are in use; from CPython 3.14 on it has a pointer behind them."""
        where = frame + self._layout.coroutines.frame_stack_top
        if self._layout.version < (3, 14):
            return self._memory.int32(where)
        return (self._memory.pointer(where) - frame - self._layout.frame_locals) // 8

    def _state(self, generator: int, frame: int) -> int:
        at = self._layout.coroutines.generator_state
        where = generator + at if at else frame + self._layout.frame_locals - BLOCK_STACK_BYTES - STATE_3_10
        return int(struct.unpack("<b", self._memory.read(where, 1))[0])

    def held(self, frame: MemoryFrame) -> Iterator[int]:
        """The objects whose ``__exit__`` or ``__aexit__`` the frame is going to call: it is in their ``with`` block.

        Until CPython 3.13 a block has the bound method, from 3.14 on the function, then the object (``LOAD_SPECIAL``).
        """
        kept = frame.stack[: frame.blocks]
        for word, after in zip(kept, (*kept, 0)[1:], strict=True):
            if self._objects.is_a(word, "builtin_function_or_method", "method"):
                yield self._memory.pointer(word + BOUND_TO)
            elif (
                after and self._layout.version >= (3, 14) and self._objects.is_a(word, "function", "method_descriptor")
            ):
                yield after

    def _frame(self, address: int, code_address: int, top: int | None = None, name: str | None = None) -> MemoryFrame:
        code = self.code(code_address)
        if top is None:
            count = code.locals + code.stack_size
        else:  # counted from the locals on but on 3.10
            count = top + code.locals if self._layout.version == (3, 10) else top
            if not code.locals <= count <= code.locals + code.stack_size:
                raise Unreadable(f"a suspended frame with a stack of {count - code.locals}")
        words = tuple(map(reference, self._memory.pointers(address + self._layout.frame_locals, count)))
        if self._layout.version == (3, 10):
            instruction = 2 * self._memory.int32(address + self._layout.frame_instruction)
            blocks = self._blocks_3_10(address)
        else:
            instruction = self._memory.pointer(address + self._layout.frame_instruction)
            instruction -= code_address + self._layout.code_start
            blocks = code.blocks_at(instruction)
        return MemoryFrame(
            code=code,
            instruction=instruction,
            locals=words[: code.locals],
            stack=words[code.locals :],
            blocks=min(max(blocks, 0), code.stack_size),
            qualified=name or code.function,
        )

    def code(self, address: int) -> Code:
        """A code object, of which the same address gives the same one."""
        if address not in self._codes:
            self._codes[address] = Code(self._objects, self._layout, address)
        return self._codes[address]

    def _blocks_3_10(self, address: int) -> int:
        """From the stack of blocks, each of which has noted how much stack there was before it."""
        first = address + self._layout.frame_locals - BLOCK_STACK_BYTES
        count = self._memory.int32(first - 8)
        if not 0 <= count <= MAX_BLOCKS:
            raise Unreadable(f"a frame with {count} blocks")
        return max((self._memory.int32(first + BLOCK_BYTES * index + 8) for index in range(count)), default=0)


def _is_same(shown: RawFrame, now: MemoryFrame) -> bool:
    if (shown["filename"], shown["line"], function_of(shown)) != (now.file, now.line, now.function):
        return False
    locals_now = dict(zip(now.code.names, now.locals, strict=False))
    return all(locals_now.get(local["name"]) == local["addr"] for local in shown["locals"] or ())
