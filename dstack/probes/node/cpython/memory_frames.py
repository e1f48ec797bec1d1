"""The frames of another process's threads and suspended coroutines, as its interpreter keeps them.

All threads are walked together: if the next frames of some are on pages that were not read yet, these pages are read
in one system call. Frames of CPython 3.11 and later lie one after another in chunks of 16 KiB, so the callers of a
frame are on its page or the one before. Seen on CPython 3.10 to 3.15.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dstack.probes.node.cached_property import cached_property
from dstack.probes.node.cpython.code_objects import Code, CodeObjects, KnownPositions, StructFields
from dstack.probes.node.cpython.layouts import CPythonLayout
from dstack.probes.node.cpython.memory import IN_PAGE, PAGE, PAGE_START, UnreadableMemory
from dstack.probes.node.cpython.objects import BOUND_TO, Objects, reference
from dstack.probes.node.thread_stacks import CodePosition

MAX_THREADS = 10_000
MAX_FRAMES = 200_000
"""Of one thread."""
MAX_ALL_FRAMES = 1 << 20
MAX_BLOCKS, BLOCK_BYTES = 20, 12
BLOCK_STACK_BYTES = MAX_BLOCKS * BLOCK_BYTES
"""CPython 3.10: a frame's blocks are right before its locals, and their number is 8 bytes before them."""
STATE_3_10 = 4
"""CPython 3.10: a frame's state is this many bytes before its blocks, after their number."""
TRACEBACK_NEXT, TRACEBACK_INSTRUCTION, FRAME_OF_OBJECT = 16, 32, 24
"""Where a traceback has the next one, followed by its frame object, and its instruction; and where a frame object has
its frame, which on CPython 3.10 is itself. The same in the sources of 3.10 to 3.15."""
TRAMPOLINE = "<interpreter trampoline>"
READ_AHEAD = 2 * PAGE
"""Callers of a frame lie below it."""

Step = tuple[int, int, int]
"""The addresses of a frame and its code object, and its instruction: an address, or on 3.10 a number."""


class MemoryFrame:
    """A frame of a thread or of a suspended coroutine. Methods raise :class:`UnreadableMemory`.

    ``locals`` and ``stack`` are words. Those of a thread's value stack may be left over from earlier values.
    """

    def __init__(
        self, frames: Frames, address: int, code: Code, instruction: int, position: CodePosition, top: int | None = None
    ) -> None:
        self._frames = frames
        self._top = top
        self.address = address
        self.code = code
        self.instruction = instruction
        self.position = position

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
        return self.position.line

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of its locals."""
        return self._frames.codes.names(self.code)

    @property
    def used_names(self) -> frozenset[str]:
        """The names that its code uses, as of functions and attributes."""
        return self._frames.codes.used_names(self.code.address)

    @cached_property
    def locals(self) -> tuple[int, ...]:
        """What its locals refer to, in the order of their names."""
        return self._frames.words(self.address, len(self.names))

    @cached_property
    def stack(self) -> tuple[int, ...]:
        """Its value stack; if the frame is suspended, only the live part."""
        return self._frames.stack(self.address, self.code, len(self.names), self._top)

    @property
    def awaited(self) -> int:
        """What it awaits or yields from if it is suspended there; 0 if its stack has no such word."""
        return self._frames.awaited(self.stack)

    @cached_property
    def blocks(self) -> int:
        """The number of stack words that belong to live ``with`` and ``try`` blocks; these are never left over."""
        return self._frames.blocks(self.address, self.code, self.instruction)

    @property
    def variables(self) -> tuple[int, ...]:
        """The objects that its locals refer to; quicker than with the names, which need further reads."""
        return self._frames.words(self.address, self._frames.codes.locals_count(self.code))

    @property
    def globals(self) -> int:
        """The address of the dict of its module."""
        return self._frames.globals(self.address)

    def local(self, name: str) -> int:
        """The address of the object that a local refers to, 0 if it has no value or does not exist.

        A local that an inner function uses (before CPython 3.12 also a comprehension) is in a cell. CPython 3.10 lists
        an argument that a closure uses twice; the last entry has the value.
        """
        names = self.names
        return self._frames.objects.content(self.locals[-1 - names[::-1].index(name)]) if name in names else 0

    def has(self, name: str) -> bool:
        """Whether a local of this name has a value; False where that cannot be read."""
        try:
            return bool(self.local(name))
        except UnreadableMemory:
            return False


@dataclass
class FrameChain:
    """The frames of a thread walked so far, leaf first; ``ahead`` is the address of the next one, 0 at the end."""

    ahead: int
    steps: list[Step] = field(default_factory=list)


def frame_head(layout: CPythonLayout) -> StructFields:
    """The fields of a frame that make a :data:`Step`, and the address of its caller."""
    kind = "i" if layout.version == (3, 10) else "Q"
    return StructFields((layout.frame_code, "Q"), (layout.frame_instruction, kind), (layout.frame_previous, "Q"))


class Frames:
    """The threads of one process, and the frames of these and of coroutines. Methods raise :class:`UnreadableMemory`.

    ``runtime`` is where the process has its ``_PyRuntime``.
    """

    def __init__(
        self,
        objects: Objects,
        runtime: int,
        known: dict[int, Code] | None = None,
        positions: KnownPositions | None = None,
    ) -> None:
        self.objects = objects
        self._memory = objects.memory
        self._layout = objects.layout
        self._runtime = runtime
        self.codes = CodeObjects(objects, known, positions)
        self._head = frame_head(objects.layout)
        self._places: dict[tuple[int, int], tuple[Code, int, CodePosition] | None] = {}
        self._without_code: set[int] = set()
        self._is_tagged = objects.layout.version >= (3, 14)

    @cached_property
    def interpreter(self) -> int:
        """The address of the main interpreter's state."""
        return self._memory.pointer(self._runtime + self._layout.runtime_interpreter)

    @cached_property
    def threads(self) -> dict[int, int]:
        """The addresses of thread states, by Python's thread id."""
        state = self._memory.pointer(self.interpreter + self._layout.interpreter_threads)
        ids: dict[int, int] = {}
        while state and state not in ids and len(ids) < MAX_THREADS:
            ids[state] = self._memory.pointer(state + self._layout.thread_id)
            state = self._memory.pointer(state + self._layout.thread_next)
        return {thread_id: state for state, thread_id in ids.items() if thread_id}  # 0: it has not begun yet

    def chains(self, threads: Mapping[int, int]) -> dict[int, FrameChain]:
        """The frames of several threads by thread id; perhaps not all of a thread that changes meanwhile.

        ``threads`` are addresses of thread states, as :attr:`threads`.
        """
        leaves = self._leaves(threads)
        chains = {thread_id: FrameChain(leaf) for thread_id, leaf in leaves.items()}
        self._memory.prefetch(self._around(chain.ahead for chain in chains.values()))
        left = [chain for chain in chains.values() if chain.ahead]
        total = MAX_ALL_FRAMES
        while left and total > 0:
            before = sum(len(chain.steps) for chain in left)
            missing = [chain for chain in left if self._walk(chain)]
            total -= sum(len(chain.steps) for chain in left) - before
            self._memory.prefetch(self._around(chain.ahead for chain in missing))
            left = [chain for chain in missing if self._is_there(chain.ahead)]
        return chains

    def _leaves(self, threads: Mapping[int, int]) -> dict[int, int]:
        """The address of each thread's innermost frame."""
        found = dict(threads)
        for offset in self._layout.thread_frame:
            self._memory.prefetch([address + offset for address in found.values()], 8)
            found = {thread_id: self._pointer_or_null(address + offset) for thread_id, address in found.items()}
        return found

    def _pointer_or_null(self, address: int) -> int:
        try:
            return self._memory.pointer(address) if address > IN_PAGE else 0
        except UnreadableMemory:
            return 0

    def _around(self, frames: Iterator[int]) -> list[int]:
        """The addresses whose pages probably contain these frames and their callers."""
        size = self._head.size
        return [
            at for frame in frames for at in (frame - READ_AHEAD, frame - PAGE, frame, frame + size) if frame > PAGE
        ]

    def _is_there(self, frame: int) -> bool:
        pages = self._memory.pages
        return frame & PAGE_START in pages and (frame + self._head.size) & PAGE_START in pages

    def _walk(self, chain: FrameChain) -> bool:
        """Follow a chain on pages that were read; returns whether it continues on another page."""
        pages, unpack, size, steps = self._memory.pages, self._head.unpack, self._head.size, chain.steps
        address = chain.ahead
        while address and len(steps) < MAX_FRAMES:
            page, offset = pages.get(address & PAGE_START), address & IN_PAGE
            if page is not None and offset + size > PAGE:
                rest = pages.get((address & PAGE_START) + PAGE)
                page, offset = (None if rest is None else page[offset:] + rest[:size]), 0
            if page is None:
                break
            code, instruction, previous = unpack(page, offset)
            steps.append((address, code, instruction))
            address = previous
        chain.ahead = address
        return bool(address) and len(steps) < MAX_FRAMES

    def stacks(self, chains: dict[int, FrameChain]) -> dict[int, list[MemoryFrame]]:
        """The frames of these chains; the code objects of all of them are read together."""
        self.codes.load({self._code_of(code) for chain in chains.values() for _, code, _ in chain.steps})
        return {thread_id: list(self._frames(chain.steps)) for thread_id, chain in chains.items()}

    def is_whole(self, chain: FrameChain) -> bool:
        """Whether a chain, whose stack was read, was followed to its end, and all of its frames have their code."""
        return not chain.ahead and not any(executable in self._without_code for _, executable, _ in chain.steps)

    def _frames(self, steps: Sequence[Step]) -> Iterator[MemoryFrame]:
        """The frames of these steps, without those by which C calls Python: a trampoline on 3.12, later no code."""
        places = self._places
        for address, executable, instruction in steps:
            key = executable, instruction
            if key not in places:
                places[key] = self._place(executable, instruction)
            place = places[key]
            if place is not None:
                yield MemoryFrame(self, address, *place)

    def _place(self, executable: int, instruction: int) -> tuple[Code, int, CodePosition] | None:
        code = self.codes.get(self._code_of(executable))
        if code is None and not self.objects.is_a(self._code_of(executable), "NoneType"):
            self._without_code.add(executable)
        if code is None or code.function == TRAMPOLINE:
            return None
        offset = self._offset(code, instruction)
        return code, offset, self.codes.position(code, offset)

    def _code_of(self, executable: int) -> int:
        return reference(executable) if self._is_tagged else executable

    def _offset(self, code: Code, instruction: int) -> int:
        """The current instruction, as an offset into its code."""
        if self._layout.version == (3, 10):
            return 2 * instruction
        return instruction - code.address - self._layout.code_start

    def suspended(self, generator: int, *, or_created: bool = False) -> MemoryFrame | None:
        """The frame of a suspended coroutine or generator, with the live part of its stack.

        None if it runs, has ended or, unless ``or_created``, has not begun.
        """
        layout = self._layout
        states = (*layout.suspended_states, *((layout.created_state,) if or_created else ()))
        address = generator + layout.generator_frame
        if layout.version == (3, 10):
            address = self._memory.pointer(address)
            if not address:
                return None
            self.objects.expect(address, "frame")
        if self._state(generator, address) not in states:
            return None
        executable, instruction, _ = self._head.unpack(self._memory.read(address, self._head.size))
        code = self.codes.code(self._code_of(executable))
        name = self.objects.text(self._memory.pointer(generator + layout.generator_qualname))
        offset = self._offset(code, instruction)
        position = self.codes.position(code, offset, name)
        return MemoryFrame(self, address, code, offset, position, self._depth(address, code))

    def of_traceback(self, traceback: int, most: int) -> Iterator[MemoryFrame]:
        """The frames of a traceback, outermost first, each at the line that raised its exception or passed it on.

        They have ended, but keep their locals.
        """
        for _ in range(most):
            if not self.objects.is_a(traceback, "traceback"):
                return
            following, address = self._memory.pointers(traceback + TRACEBACK_NEXT, 2)
            self.objects.expect(address, "frame")
            if self._layout.version > (3, 10):
                address = self._memory.pointer(address + FRAME_OF_OBJECT)
            executable, _, _ = self._head.unpack(self._memory.read(address, self._head.size))
            code = self.codes.code(self._code_of(executable))
            instruction = self._memory.int32(traceback + TRACEBACK_INSTRUCTION)
            yield MemoryFrame(self, address, code, instruction, self.codes.position(code, instruction))
            traceback = following

    def _depth(self, frame: int, code: Code) -> int:
        """The number of live words in the stack of a suspended frame."""
        at, count = frame + self._layout.frame_stack_top, len(self.codes.names(code))
        if self._is_tagged:
            words = (self._memory.pointer(at) - frame - self._layout.frame_locals) // 8
        else:  # counted from the first local on, except on 3.10
            words = self._memory.int32(at) + (count if self._layout.version == (3, 10) else 0)
        if not 0 <= words - count <= self.codes.stack_size(code):
            raise UnreadableMemory(f"a suspended frame with a stack of {words - count}")
        return words - count

    def _state(self, generator: int, frame: int) -> int:
        at = self._layout.generator_state
        where = generator + at if at else frame + self._layout.frame_locals - BLOCK_STACK_BYTES - STATE_3_10
        return int(struct.unpack("<b", self._memory.read(where, 1))[0])

    def held(self, frame: MemoryFrame) -> Iterator[int]:
        """The objects whose ``with`` or ``async with`` blocks the frame is in: it will call their exit methods.

        Until CPython 3.13 a block has the bound method, from 3.14 on the function, then the object (``LOAD_SPECIAL``).
        """
        if not frame.blocks:
            return
        kept = frame.stack[: frame.blocks]
        for word, after in zip(kept, (*kept, 0)[1:], strict=True):
            if self.objects.is_a(word, "builtin_function_or_method", "method"):
                yield self._memory.pointer(word + BOUND_TO)
            elif after and self._is_tagged and self.objects.is_a(word, "function", "method_descriptor"):
                yield after

    def globals(self, frame: int) -> int:
        """The address of the dict of a frame's module."""
        found = self._memory.pointer(frame + self._layout.frame_globals)
        self.objects.expect(found, "dict")
        return found

    def words(self, frame: int, count: int, start: int = 0) -> tuple[int, ...]:
        """``count`` words of a frame's locals and stack."""
        words = self._memory.pointers(frame + self._layout.frame_locals + 8 * start, count)
        return tuple(map(reference, words)) if self._is_tagged else words

    def stack(self, frame: int, code: Code, locals_count: int, depth: int | None) -> tuple[int, ...]:
        """The value stack of a frame: its first ``depth`` words, or all if the depth is unknown."""
        return self.words(frame, self.codes.stack_size(code) if depth is None else depth, locals_count)

    def awaited(self, stack: Sequence[int]) -> int:
        """The word of a suspended frame's stack that refers to what it awaits, 0 without one."""
        place = self._layout.awaited_from_top
        return stack[-place] if len(stack) >= place else 0

    def blocks(self, frame: int, code: Code, instruction: int) -> int:
        """The number of words in the stack of a frame that belong to live blocks."""
        count = self._blocks_3_10(frame) if self._layout.version == (3, 10) else self.codes.blocks_at(code, instruction)
        return min(max(count, 0), self.codes.stack_size(code))

    def _blocks_3_10(self, address: int) -> int:
        """The maximum of the stack depths that the blocks of the frame record."""
        first = address + self._layout.frame_locals - BLOCK_STACK_BYTES
        count = self._memory.int32(first - 8)
        if not 0 <= count <= MAX_BLOCKS:
            raise UnreadableMemory(f"a frame with {count} blocks")
        return max((self._memory.int32(first + BLOCK_BYTES * index + 8) for index in range(count)), default=0)
