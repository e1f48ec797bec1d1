"""The ledger of a process group in one of its processes: how many collectives it has entered, and the last of them.

A process that ends may leave its ledgers in a file: torch dumps its flight recorder when a collective takes too long.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from dstack.observed.calls import Natural, ProcessGroup, UnixTime
from dstack.observed.frozen_dataclass import frozen_dataclass

MAX_RECORDED, MAX_TIMES = 256, 64
"""The most collectives of a process that are read, the last ones, and of a group of which the times are."""

Sizes = Annotated[tuple[Natural, ...], Meta(max_length=64)]


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """A collective as a process has recorded it: with the sizes and types of its inputs, and the stack of the call.

    ``operation`` is the library's name, such as ``all_reduce``, ``sizes`` and ``types`` those of each input tensor,
    such as ``(4096,)`` and ``float32``. Calls of a loop are often equal, and are then one value.
    """

    operation: Annotated[str, Meta(max_length=200)]
    sizes: Annotated[tuple[Sizes, ...], Meta(max_length=64)] = ()
    types: Annotated[tuple[Annotated[str, Meta(max_length=40)], ...], Meta(max_length=64)] = ()
    stack: Natural = 0


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class GroupLedger:
    """What a process has counted and recorded of the collectives of one group, in the order of their calls.

    ``group`` is the position of the group among the process's. ``entered`` is the number of collectives that the
    process has entered: the n-th of each member belong together. The calls are positions among the process's recorded
    collectives; the last one is number ``recorded``, entered at ``entered_at``. ``ages_ms`` are how many milliseconds
    before that the last ones were entered, in their order. ``open`` are the numbers of recorded ones that have not
    ended, as far as the library has noticed; of NCCL that is what its watchdog has seen.
    """

    group: Natural
    backend: Literal["gloo", "nccl"]
    entered: Natural
    recorded: Natural = 0
    calls: Annotated[tuple[Natural, ...], Meta(max_length=MAX_RECORDED)] = ()
    open: Annotated[tuple[Natural, ...], Meta(max_length=MAX_RECORDED)] = ()
    entered_at: UnixTime | None = None
    ages_ms: Annotated[tuple[Natural, ...], Meta(max_length=MAX_TIMES)] = ()

    def fits(self, groups: int, collectives: int) -> bool:
        """Whether it refers to one of so many groups and collectives only."""
        return self.group < groups and max(self.calls, default=-1) < collectives and len(self.calls) <= self.recorded


MAX_DUMPED_GROUPS, MAX_DUMPED_RANKS = 32, 1 << 16
"""The most groups of a dump, and ranks of a group."""
DumpProblem = Literal["malformed", "too large", "unreadable"]


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class RecorderDump:
    """A file into which torch has dumped the flight recorder of the process of a ``rank``.

    The rank is that of the file's name. ``written_at`` is when the file last changed, by the clock of its host.
    ``thread`` is the name of the thread that made the last call; that of a worker of Ray begins with ``ray::``. The
    ``groups`` have no world, and no ranks where the file does not state them. ``world_size`` is None if unknown.
    With a ``problem`` nothing of its content is known.
    """

    path: Annotated[str, Meta(max_length=4096)]
    rank: Natural
    written_at: UnixTime
    node_id: str = ""
    version: Annotated[str, Meta(max_length=40)] = ""
    thread: Annotated[str, Meta(max_length=40)] = ""
    world_size: Natural | None = None
    groups: Annotated[tuple[ProcessGroup, ...], Meta(max_length=MAX_DUMPED_GROUPS)] = ()
    ledgers: Annotated[tuple[GroupLedger, ...], Meta(max_length=MAX_DUMPED_GROUPS)] = ()
    collectives: Annotated[tuple[Collective, ...], Meta(max_length=MAX_DUMPED_GROUPS * MAX_RECORDED)] = ()
    problem: DumpProblem | None = None

    @property
    def has_sound_ledgers(self) -> bool:
        """Whether its ledgers refer to its groups and collectives."""
        return all(one.fits(len(self.groups), len(self.collectives)) for one in self.ledgers)
