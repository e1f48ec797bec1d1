"""The frames of a running thread, from two copies of its memory that one system call makes.

The thread is not stopped, so it may call and return while its frames are copied. All pages that its frames probably lie
on are therefore copied at once, and then a second time. Calls that both copies show were active between the two. If the
innermost calls differ, each of them lasts no longer than the few microseconds between the copies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dstack.probes.node.cpython.layouts import CPythonLayout
from dstack.probes.node.cpython.memory import (
    IN_PAGE,
    PAGE,
    PAGE_START,
    USER_END,
    NotMapped,
    ProcessMemory,
    UnreadableMemory,
)
from dstack.probes.node.cpython.memory_frames import READ_AHEAD, Step, frame_head

MAX_PAGES = 256
"""The most pages of one thread: frames that lie further out are left out."""
MAX_STEPS = 20_000
MAX_COPIES = 100
"""The most copies for one reading: each may show that frames lie on further pages."""
PAGES_AROUND = 4
"""The most pages that one missing address adds."""
ATTEMPTS = 4
"""The most complete copies for one reading."""
KEPT_PAGES = 16
"""Pages of earlier stacks that are copied again, as the thread may call as deeply again."""

_Pages = Mapping[int, bytes]


@dataclass(frozen=True, slots=True)
class FrameReading:
    """The calls that both copies show, leaf first.

    ``is_cut``: calls within these differ between the copies. ``is_whole``: it ends with the outermost frame.
    """

    steps: Sequence[Step]
    is_cut: bool = False
    is_whole: bool = True


class ThreadFrames:
    """Reads the frames of one thread, and remembers the pages that these lie on.

    ``state`` is the address of its thread state, ``thread_id`` the id that it has there.
    """

    def __init__(self, state: int, thread_id: int, layout: CPythonLayout) -> None:
        self._state = state
        self._thread_id = thread_id
        self._id_at = state + layout.thread_id
        self._path = layout.thread_frame
        self._head = frame_head(layout)
        self._base = _pages_of((self._id_at, state + self._path[0]), 8)
        self._pages = sorted(self._base)
        self._not_mapped: set[int] = set()

    def read(self, memory: ProcessMemory) -> FrameReading | None:
        """Its frames, None if they changed during each of several copies.

        Raises :class:`UnreadableMemory` if the thread has ended, or its memory cannot be read.
        """
        self._not_mapped.clear()
        changed = 0
        for _ in range(MAX_COPIES):
            try:
                copies = memory.copies(self._pages, 2)
            except NotMapped as error:
                self._leave_out(error)
                continue
            walks = [_Walk(pages, self._head.size) for pages in copies]
            for walk in walks:
                self._follow(walk)
            if self._extend(walks):
                continue
            reading = None if self._is_astray(walks) else _agreed(*walks)
            changed += 1
            if reading is not None or changed == ATTEMPTS:
                self._remember(walks)
                return reading
        return None

    def _is_astray(self, walks: Iterable[_Walk]) -> bool:
        """Whether a walk has left what are frames, although there would be room for further pages."""
        return len(self._pages) + PAGES_AROUND < MAX_PAGES and any(walk.missing for walk in walks)

    def _follow(self, walk: _Walk) -> None:
        """Walk from the thread state to the outermost frame, as far as its pages are there."""
        if walk.word(self._id_at) != self._thread_id:
            raise UnreadableMemory("the thread has ended")
        address = self._state
        for offset in self._path:
            found = walk.word(address + offset)
            if found is None:
                return
            address = found
            if not address:
                return
        unpack, steps = self._head.unpack, walk.steps
        while address and len(steps) < MAX_STEPS:
            place = walk.place(address)
            if place is None:
                return
            code, instruction, previous = unpack(*place)
            steps.append((address, code, instruction))
            address = previous

    def _extend(self, walks: Iterable[_Walk]) -> bool:
        """Whether the next copies include pages that these lack; not beyond the limit."""
        missing = {walk.missing for walk in walks if walk.missing} - {0}
        ahead = (at for one in missing for at in (one - READ_AHEAD, one - PAGE, one, one + self._head.size))
        new = _pages_of((at for at in ahead if PAGE < at < USER_END), 1).difference(self._pages, self._not_mapped)
        if not new or len(new) + len(self._pages) > MAX_PAGES:
            return False
        self._pages = sorted(new.union(self._pages))
        return True

    def _remember(self, walks: Iterable[_Walk]) -> None:
        """Copy the pages of these frames the next time, and some others."""
        used = self._base.union(*(walk.used for walk in walks))
        others = [page for page in self._pages if page not in used]
        self._pages = sorted(used.union(others[:KEPT_PAGES]))

    def _leave_out(self, error: NotMapped) -> None:
        """Do not copy a page that is not mapped, or not any more."""
        if error.page in self._base:
            raise error
        self._pages.remove(error.page)
        self._not_mapped.add(error.page)


class _Walk:
    """The frames in one copy. ``missing`` is the address that is not in it, 0 if all are."""

    def __init__(self, pages: _Pages, size: int) -> None:
        self._pages = pages
        self._size = size
        self.steps: list[Step] = []
        self.used: set[int] = set()
        self.missing = 0

    def word(self, address: int) -> int | None:
        """The word at an address."""
        page, offset = self._pages.get(address & PAGE_START), address & IN_PAGE
        if page is None or offset > PAGE - 8:
            self.missing = address
            return None
        self.used.add(address & PAGE_START)
        return int.from_bytes(page[offset : offset + 8], "little")

    def place(self, address: int) -> tuple[bytes, int] | None:
        """The bytes that contain a frame, and its position in these."""
        start, offset = address & PAGE_START, address & IN_PAGE
        page = self._pages.get(start)
        self.used.add(start)
        if page is not None and offset + self._size > PAGE:
            rest = self._pages.get(start + PAGE)
            page, offset = (None if rest is None else page[offset:] + rest[: self._size]), 0
            self.used.add(start + PAGE)
        if page is None:
            self.missing = address
            return None
        return page, offset


def _agreed(first: _Walk, second: _Walk) -> FrameReading | None:
    """The frames that both have, from the outermost one on; the last one may be at different instructions."""
    common = 0
    for one, other in zip(reversed(first.steps), reversed(second.steps), strict=False):
        if one[:2] != other[:2]:
            break
        common += 1
        if one != other:  # the same call, which has proceeded meanwhile
            break
    if first.steps and not common:
        return None
    steps = first.steps[len(first.steps) - common :]
    return FrameReading(steps, is_cut=common < len(first.steps), is_whole=not first.missing)


def _pages_of(addresses: Iterable[int], size: int) -> set[int]:
    return {page for at in addresses for page in range(at & PAGE_START, at + size, PAGE)}
