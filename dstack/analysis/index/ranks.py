"""The position of a process in a distributed run: its rank in the world and in each parallel dimension, and its labels.

A dimension is a process group that the program has named, such as ``mesh_tp`` of a device mesh: dimension ``tp``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dstack.observed.calls import DATA, RAY, TRAIN, ProcessGroup
from dstack.observed.processes import Process

RANK, LOCAL_RANK = "rank", "local_rank"
WORLDS = ("default_pg", "default", "world")
"""Names of the group of all processes in torch.distributed, ray.util.collective and programs."""
UNNAMED = ("", "undefined")
MESH = "mesh_"
"""The prefix of the names of groups of a device mesh (torch 2.13)."""
OF_MEGATRON = {
    "TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
    "DATA_PARALLEL_GROUP": "dp",
    "EXPERT_MODEL_PARALLEL_GROUP": "ep",
    "CONTEXT_PARALLEL_GROUP": "cp",
}
"""Megatron-LM's names of its groups, from its source, without the groups of several dimensions."""
FIRST = ("tp", "pp", "dp", "ep", "cp")
"""The usual dimensions come first, in this order."""
SHOWN_LABELS = 4
"""The most dimensions and labels of one worker that are named; the others are counted."""
LONGEST = 40
"""The most characters of a dimension or label within a text."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """The ranks and labels of one worker or child process; empty if it has none or they were not read.

    ``world`` identifies the run to which ``rank`` belongs, as in :class:`dstack.observed.processes.ProcessGroup`.
    ``dimensions`` are its ranks within named groups, and ``labels`` those that the program set, both as pairs of name
    and value.
    """

    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    world: str = ""
    dimensions: tuple[tuple[str, int], ...] = ()
    labels: tuple[tuple[str, str], ...] = ()

    def values(self) -> dict[str, str]:
        """Everything to group and filter by: rank, dimensions, labels, local rank. A label hides a dimension."""
        own = ((RANK, self.rank), *self.dimensions, (LOCAL_RANK, self.local_rank))
        return {name: str(value) for name, value in own if value is not None} | dict(self.labels)

    @property
    def terms(self) -> frozenset[str]:
        """The terms of a filter that match it, in lower case: ``rank:3``, ``tp:1``, ``stage:rollout``."""
        return frozenset(f"{name}:{value}".casefold() for name, value in self.values().items())

    def words(self, name: str) -> str | None:
        """``tp 1`` or ``stage=rollout``, None if it has no value of this name."""
        value = self.values().get(name)
        if (name, value) in self.labels:
            return f"{name}={value}"
        title = "local rank" if name == LOCAL_RANK else name
        return f"{title} {value}" if value is not None else None

    @property
    def in_words(self) -> str:
        """``rank 3 (tp 1, dp 0)`` or ``rank 3 (tp 1, stage=rollout)``; empty without ranks and labels."""
        local = (LOCAL_RANK,) if self.local_rank not in (None, self.rank) else ()
        found = list(dict.fromkeys((*dict(self.dimensions), *dict(self.labels), *local)))
        more = f" and {len(found) - SHOWN_LABELS} more" if len(found) > SHOWN_LABELS else ""
        listed = ", ".join(cut(self.words(name) or "") for name in found[:SHOWN_LABELS]) + more
        if self.rank is None:
            return listed
        return f"rank {self.rank}" + (f" ({listed})" if listed else "")


NO_RANKS = Ranks()


def ranks_of(process: Process | None) -> Ranks:
    """The ranks and labels of a process."""
    if process is None:
        return NO_RANKS
    worlds = [one for one in process.process_groups if _name(one) in WORLDS and process.rank in (None, one.rank)]
    world = min(worlds, key=lambda group: group.library != TRAIN, default=None)  # processes join it before other groups
    return Ranks(
        rank=process.rank if process.rank is not None else world.rank if world else None,
        local_rank=process.local_rank,
        world_size=process.world_size or (len(world.ranks) if world else None),
        world=world.world if world else "",
        dimensions=_dimensions(process.process_groups),
        labels=tuple(process.labels.items()),
    )


def _dimensions(groups: Iterable[ProcessGroup]) -> tuple[tuple[str, int], ...]:
    """The rank in each named group, without names of groups in which the ranks differ."""
    found: dict[str, set[int]] = defaultdict(set)
    for group in groups:
        name = _name(group)
        if name not in (*WORLDS, *UNNAMED) and not name.isdecimal() and group.rank in group.ranks:
            found[name].add(group.ranks.index(group.rank))
    return tuple((name, ranks.pop()) for name, ranks in sorted(found.items(), key=_usual_first) if len(ranks) == 1)


def _name(group: ProcessGroup) -> str:
    """The program's name of the group, empty if it has only a name by torch.distributed, a number or hash."""
    if group.library in (TRAIN, DATA):
        return WORLDS[0] if group.library == TRAIN else ""
    name = group.description or (group.name if group.library == RAY else "")
    if name.isupper() and "_GROUP" in name:
        return OF_MEGATRON.get(name, "")
    return name.removeprefix(MESH)


def _usual_first(item: tuple[str, object]) -> int:
    return FIRST.index(item[0]) if item[0] in FIRST else len(FIRST)


def cut(text: str) -> str:
    """The text, shortened to ``LONGEST`` characters."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def names_in(many: Iterable[Ranks]) -> Iterator[str]:
    """The names of all values in these: the rank, then dimensions, labels and the local rank."""
    found = dict.fromkeys(name for ranks in many for name in ranks.values())
    ordered = sorted(found, key=lambda name: (name != RANK, name == LOCAL_RANK, _usual_first((name, None))))
    return iter(ordered)
