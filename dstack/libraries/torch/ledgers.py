"""The ledgers of torch's process groups in one process, from the counters of their backends and from its recorders."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dstack.libraries.torch.backends import Backend, BackendName
from dstack.libraries.torch.groups import TorchGroups
from dstack.libraries.torch.recorder import FlightRecorder, Record, What
from dstack.observed.ledgers import MAX_TIMES, Collective, GroupLedger
from dstack.probes.node.cpython.memory import UnreadableMemory
from dstack.probes.node.cpython.python_process import PythonProcess
from dstack.probes.node.thread_stacks import CodePosition

GROUP_BYTES = 512
"""The first bytes of a ``ProcessGroup``, in which it has its backends in hash tables; 208 and 264 were observed."""
FULL_LOAD = 0x3F80_0000
"""1.0 as a float: the load factor of a ``std::unordered_map``, behind its first node and the number of its nodes."""
MAX_BACKENDS = 8


_Kind = tuple[What, tuple[tuple[Any, ...], ...]]
"""What equal records share: the call, and the frames that made it."""


class DistinctRecords:
    """The distinct collectives of a process, to which its ledgers refer."""

    def __init__(self) -> None:
        self.positions: dict[_Kind, int] = {}

    def ledger(self, group: int, backend: BackendName, entered: int, records: Sequence[Record]) -> GroupLedger:
        """The ledger of a group that has entered so many collectives, from the records of the last ones."""
        own = _without_gaps(records)
        return GroupLedger(
            group=group,
            backend=backend,
            entered=entered,
            recorded=own[-1].number if own else 0,
            calls=tuple(self._position(one) for one in own),
            open=tuple(one.number for one in own if not one.has_ended),
            entered_at=own[-1].created if own else None,
            ages_ms=tuple(max(0, round(1e3 * (own[-1].created - one.created))) for one in own[-MAX_TIMES:]),
        )

    def collectives(self) -> Iterator[tuple[Collective, tuple[tuple[Any, ...], ...]]]:
        """The collectives in their order, each with the frames of its call and without a stack."""
        for what, frames in self.positions:
            yield Collective(operation=what.operation, sizes=what.sizes, types=what.types), frames

    def _position(self, record: Record) -> int:
        return self.positions.setdefault((record.what, record.frames), len(self.positions))


@dataclass(frozen=True)
class Ledgers:
    """The ledgers of a process, and the collectives that they refer to, each with the positions of its stack."""

    ledgers: tuple[GroupLedger, ...] = ()
    collectives: tuple[tuple[Collective, Sequence[CodePosition]], ...] = ()


class TorchLedgers:
    """The ledgers of one process, as far as they can be read; nothing is raised."""

    def __init__(self, process: PythonProcess, groups: TorchGroups, backends: Sequence[Backend]) -> None:
        self._process = process
        self._memory = process.memory
        self._groups = groups
        self._backends = backends
        self._distinct = DistinctRecords()

    def read(self) -> Ledgers:
        """Those of all groups whose backend counts."""
        records = {one.name: self._records(one) for one in self._backends}
        found = []
        for position, (cpp, group) in enumerate(self._groups.objects()):
            for backend, own in self._backends_of(cpp):
                with contextlib.suppress(UnreadableMemory):
                    entered = backend.count(self._memory, own)
                    own_records = records[backend.name].get(group.name, [])
                    found.append(self._distinct.ledger(position, backend.name, entered, own_records))
        return Ledgers(tuple(found), tuple(self._with_stacks()))

    def _records(self, backend: Backend) -> dict[str, list[Record]]:
        """The last collectives that are recorded of a backend, by the name of their group."""
        found: dict[str, list[Record]] = defaultdict(list)
        with contextlib.suppress(UnreadableMemory):
            for one in FlightRecorder(self._memory, backend.recorder).last() if backend.recorder else ():
                if one.what.backend == backend.name:
                    found[one.group].append(one)
        return found

    def _backends_of(self, cpp: int) -> Iterator[tuple[Backend, int]]:
        """The backends of a group with the addresses of their objects, which hash tables in it refer to."""
        known = {one.vtable: one for one in self._backends}
        words = self._memory.mapped_words(cpp, GROUP_BYTES)
        found: dict[int, Backend] = {}
        for first, count, load in zip(words, words[1:], words[2:], strict=False):
            if first and 0 < count <= MAX_BACKENDS and load & 0xFFFF_FFFF == FULL_LOAD:
                with contextlib.suppress(UnreadableMemory):
                    for address in self._values(first, count):
                        backend = known.get(self._memory.pointer(address))
                        if backend is not None:
                            found[address] = backend
        return ((backend, address) for address, backend in found.items())

    def _values(self, node: int, count: int) -> Iterator[int]:
        """The pointers that a hash table has under numbers, from its first node on."""
        for _ in range(count):
            if not node:
                return
            node, _, address = self._memory.pointers(node, 3)
            yield address

    def _with_stacks(self) -> Iterator[tuple[Collective, Sequence[CodePosition]]]:
        codes = self._process.frames.codes
        stacks = [frames for _, frames in self._distinct.positions]
        codes.load({address for frames in stacks for address, _ in frames})
        for collective, frames in self._distinct.collectives():
            known = ((codes.get(address), instruction) for address, instruction in frames)
            positions = [codes.position(code, instruction) for code, instruction in known if code is not None]
            yield collective, positions


def _without_gaps(records: Sequence[Record]) -> Sequence[Record]:
    """The last records whose numbers follow each other; a second one of a number belongs to the same collective."""
    found: list[Record] = []
    for one in reversed(records):
        if found and one.number not in (found[0].number, found[0].number - 1):
            break
        if not found or one.number != found[0].number:
            found.insert(0, one)
    return found
