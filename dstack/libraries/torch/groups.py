"""The process groups of torch.distributed that a process is a member of.

Its module keeps dicts by ProcessGroup: the rank in the group by rank in the world, and the name. Only C++ knows which
of these ranks is the process's own. Seen on torch 2.13 to 2.15; every value is checked against another one.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dstack.observed.calls import TORCH, ProcessGroup
from dstack.probes.node.cached_property import cached_property
from dstack.probes.node.cpython.memory import UnreadableMemory
from dstack.probes.node.cpython.objects import DICT_KEYS
from dstack.probes.node.cpython.python_process import PythonProcess
from dstack.probes.node.named_values import launch_variables, number_of

MODULE = "torch.distributed.distributed_c10d"
PROCESS_GROUP = "ProcessGroup"
"""The last part of the name of its type, which pybind11 has made, or of one that inherits from it."""
CPP_OBJECT = 16
"""The offset of the address of the C++ object in an object of pybind11."""
RANK_AND_SIZE = 24
"""The offset of two ints in the C++ object: the rank in the group, and the size of the group."""
FIRST_FIELD, LAST_FIELD = 32, 96
"""The offsets between which the C++ object has its description, a ``std::string``."""
DEFAULT_GROUP, NO_DESCRIPTION = "default_pg", "undefined"
"""Torch's descriptions of the default group, and of a group without a description."""
OF_WORLD = re.compile(r"\d+|[0-9a-f]{40}")
"""The names that torch gives to groups of its world: a number, or a hash. Programs that make groups of processes of
several worlds, as to send weights from trainers to engines, give them names, and ranks that count from 0."""
GLOO = "gloo"
MAX_GROUPS, MAX_MEMBERS = 256, 1 << 13
MAX_ALL_MEMBERS = 1 << 15
MAX_DESCRIPTION, MAX_NAME, MAX_ADDRESS = 128, 256, 512


@dataclass(frozen=True)
class _Group:
    """A group as memory has it: the address of its object in C++, its world, the own rank and all ranks in that."""

    cpp: int
    world: str
    rank: int
    ranks: list[int]


class TorchGroups:
    """The groups of one process, as far as they can be read; nothing is raised."""

    def __init__(self, process: PythonProcess) -> None:
        self._process = process
        self._objects = process.objects
        self.memory = self._memory = process.memory

    @cached_property
    def is_loaded(self) -> bool:
        """Whether the process has imported torch.distributed."""
        with contextlib.suppress(UnreadableMemory):
            return self._process.modules.has(MODULE)
        return False

    @cached_property
    def variables(self) -> Mapping[str, str]:
        """The variables that a launcher has set; empty if torch is not loaded."""
        with contextlib.suppress(UnreadableMemory):
            return launch_variables(self._process) if self.is_loaded else {}
        return {}

    @cached_property
    def default(self) -> ProcessGroup | None:
        """The default group, None before ``init_process_group`` has ended."""
        with contextlib.suppress(UnreadableMemory):
            return self.by_address.get(self._default) if self._default else None
        return None

    @cached_property
    def by_address(self) -> dict[int, ProcessGroup]:
        """All groups by the address of their Python object."""
        with contextlib.suppress(UnreadableMemory):
            return {address: self._data(address, group) for address, group in self._groups.items()}
        return {}

    def objects(self) -> list[tuple[int, ProcessGroup]]:
        """The same groups in their order, each with the address of its object in C++."""
        with contextlib.suppress(UnreadableMemory):
            return [(self._groups[address].cpp, group) for address, group in self.by_address.items()]
        return []

    @cached_property
    def with_gloo(self) -> list[ProcessGroup]:
        """The groups that have gloo among their backends, in the order in which they were made."""
        with contextlib.suppress(UnreadableMemory):
            table = self._process.modules.lookup(MODULE, "_pg_backend_config")
            found = dict(self._objects.entries(table)) if table else {}
            texts = {group: self._objects.text(found[group], MAX_NAME) for group in self.by_address if group in found}
            return [data for group, data in self.by_address.items() if GLOO in texts.get(group, "")]
        return []

    def of_address(self, address: int) -> ProcessGroup | None:
        """The group that a variable refers to: None in Python is the default group."""
        return self.default if self._objects.is_a(address, "NoneType") else self.by_address.get(address)

    def address_of(self, init_method: str | None) -> str:
        """The rendezvous address for this ``init_method``, empty if unknown."""
        if init_method is None:
            return ""
        if init_method.startswith("env://"):
            host, port = self.variables.get("MASTER_ADDR"), self.variables.get("MASTER_PORT")
            return f"tcp://{host}:{port}" if host and port else ""
        return init_method.partition("?")[0]

    @cached_property
    def _world(self) -> str:
        method = self._process.modules.lookup(MODULE, "_default_pg_init_method")
        is_text = self._objects.is_a(method, "str")
        return self.address_of(self._objects.text(method, MAX_ADDRESS) if is_text else None)

    @cached_property
    def _default(self) -> int:
        """The address of the default group, 0 where there is none."""
        world = self._process.modules.lookup(MODULE, "_world") if self.is_loaded else 0
        found = self._objects.attribute(world, "_default_pg") if world else 0
        return found if self._is_group(found) else 0

    @cached_property
    def _groups(self) -> dict[int, _Group]:
        """The groups in which the process's own rank is certain."""
        members = dict(self._members())
        own = self._own_rank(members.get(self._default, [])) if self._default else None
        found = {}
        for address, ranks in members.items():
            with contextlib.suppress(UnreadableMemory):
                group = self._group(address, ranks, own)
                if group:
                    found[address] = group
        return found

    def _group(self, address: int, ranks: list[int], own: int | None) -> _Group | None:
        """A group of the world, or else one that a program has made with a name and ranks of its own."""
        cpp = self._memory.pointer(address + CPP_OBJECT)
        rank, name = self._rank_in(cpp, ranks), self._names.get(address, "")
        if address != self._default and not OF_WORLD.fullmatch(name):
            return None if rank is None else _Group(cpp, name, rank, ranks)
        if own is None or own not in ranks or rank not in (own, None):
            return None
        return _Group(cpp, self._world, own, ranks)

    def _members(self) -> Iterator[tuple[int, list[int]]]:
        """The groups of the process, with the ranks of their members; torch has an int for groups of others."""
        table = self._process.modules.lookup(MODULE, "_pg_group_ranks")
        left = MAX_ALL_MEMBERS
        for group, ranks in self._objects.entries(table)[:MAX_GROUPS] if table else ():
            with contextlib.suppress(UnreadableMemory):
                if self._is_group(group) and 0 < self._objects.size(ranks, "dict") <= min(left, MAX_MEMBERS):
                    found = self._ranks(ranks)
                    left -= len(found)
                    yield group, found

    def _ranks(self, table: int) -> list[int]:
        """The ranks of a group's members in the world, in the order of their ranks in the group."""
        entries = self._objects.entries(table)
        if not entries:
            raise UnreadableMemory("a group without members")
        key = (table, self._memory.pointer(table + DICT_KEYS), len(entries), *entries[0], *entries[-1])
        known = self._process.known.ranks
        if key not in known:
            if len(known) >= MAX_GROUPS:
                known.clear()
            known[key] = self._read_ranks(entries)
        return known[key]

    def _read_ranks(self, entries: Sequence[tuple[int, int]]) -> list[int]:
        ranks, inside = (self._objects.counts(some) for some in zip(*entries, strict=True))
        pairs = sorted(zip(inside, ranks, strict=True))
        if sorted(inside) != list(range(len(entries))) or len(set(ranks)) < len(entries):
            raise UnreadableMemory("ranks that do not count from 0 on")
        return [rank for _, rank in pairs]

    def _own_rank(self, world: list[int]) -> int | None:
        """The process's rank in the world, as C++ has it, else as its launcher has set it."""
        cpp = self._memory.pointer(self._default + CPP_OBJECT)
        rank = self._rank_in(cpp, world)
        if rank is None and number_of(self.variables, "WORLD_SIZE") == len(world):
            rank = number_of(self.variables, "RANK")
        return rank if rank in world else None

    def _rank_in(self, cpp: int, ranks: list[int]) -> int | None:
        """The own rank in the world by the C++ object of a group of these; None where its size is not theirs."""
        with contextlib.suppress(UnreadableMemory):
            rank, size = self._memory.unpack("<ii", cpp + RANK_AND_SIZE)
            return ranks[rank] if 0 <= rank < size == len(ranks) else None
        return None

    def _data(self, address: int, group: _Group) -> ProcessGroup:
        return ProcessGroup(
            library=TORCH,
            world=group.world,
            name=self._names.get(address, ""),
            rank=group.rank,
            ranks=tuple(group.ranks),
            description=self._description(group),
        )

    @cached_property
    def _names(self) -> dict[int, str]:
        table = self._process.modules.lookup(MODULE, "_pg_names")
        names = self._objects.entries(table) if table else []
        return {group: self._objects.text(name, MAX_NAME) for group, name in names if self._is_group(group)}

    # Descriptions, which only C++ has

    def _description(self, group: _Group) -> str:
        """The description that the program gave a group; for a group with its own world, that world's name."""
        found = self._cpp_text(group.cpp + self._description_at) if self._description_at is not None else None
        if found is None or found == NO_DESCRIPTION:
            return "" if group.world == self._world else group.world
        return found

    @cached_property
    def _description_at(self) -> int | None:
        """The offset of descriptions: where the default group has the one that torch gives it."""
        cpp = self._groups[self._default].cpp if self._default in self._groups else 0
        offsets = range(FIRST_FIELD, LAST_FIELD, 8) if cpp else ()
        return next((offset for offset in offsets if self._cpp_text(cpp + offset) == DEFAULT_GROUP), None)

    def _cpp_text(self, address: int) -> str | None:
        """A ``std::string`` of libstdc++: where its characters are, and how many."""
        with contextlib.suppress(UnreadableMemory, UnicodeDecodeError):
            start, size = self._memory.pointers(address, 2)
            if 0 < size <= MAX_DESCRIPTION and self._memory.read(start + size, 1) == b"\0":
                text = self._memory.read(start, size).decode()
                return text if text.isprintable() else None
        return None

    # Values

    def _is_group(self, address: int) -> bool:
        return self._objects.is_kind_of(address, PROCESS_GROUP)
