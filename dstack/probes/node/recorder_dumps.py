"""The files of this node into which torch has dumped flight recorders, found by what torch calls them.

``PREFIX`` and the rank, where the prefix is a variable of the environment, else one in the user's cache. The names are
in the libraries of torch 2.13 to 2.15; ``/tmp/nccl_trace_rank_`` is in the sources of older ones. A name that the
program renews for each dump (``TORCH_FR_DUMP_DYNAMIC_FILE_NAME``) is not found.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from dstack.libraries.torch.dumps import Dumped, MalformedDump, content
from dstack.observed.ledgers import DumpProblem, RecorderDump
from dstack.probes.node.procfs import proc
from dstack.probes.node.stacks.table import StackTable
from dstack.probes.node.thread_stacks import CodePosition
from dstack.probes.node.wire import DumpRequest

PREFIXES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
CACHE, HOME = "XDG_CACHE_HOME", "HOME"
IN_CACHE, OLD_PREFIX = "torch/comm_lib_trace_rank_", "/tmp/nccl_trace_rank_"
MAX_BYTES = 64 << 20
MAX_FILES, MAX_PROCESSES, MAX_RANK_DIGITS = 64, 64, 6
"""The most files that are read on this node, the newest ones, and processes whose variables are."""
SHARE = 0.5
"""The share of the remaining time in which new files are opened."""


@dataclass(frozen=True)
class _File:
    path: str
    rank: int
    about: os.stat_result

    @property
    def key(self) -> tuple[str, int, int]:
        """What changes when the file is written again."""
        return self.path, self.about.st_mtime_ns, self.about.st_size


class RecorderDumps:
    """Reads each file once for as long as it is as it was."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int, int], Dumped | DumpProblem] = {}

    def read(
        self, pids: Sequence[int], request: DumpRequest, table: StackTable, deadline: float
    ) -> Iterator[RecorderDump]:
        """The files that belong to the users of these processes, the newest first."""
        pids = (*pids[:MAX_PROCESSES], os.getpid())
        users = {proc.owner(pid) for pid in pids}
        files = [one for prefix in {*_prefixes(pids), *request["prefixes"]} for one in _files(prefix)]
        recent = [one for one in files if one.about.st_mtime >= request["since"] and one.about.st_uid in users]
        recent.sort(key=lambda one: -one.about.st_mtime)
        until = time.monotonic() + SHARE * (deadline - time.monotonic())
        self._known = {one.key: self._known[one.key] for one in recent if one.key in self._known}
        for one in recent[:MAX_FILES]:
            if one.key not in self._known and time.monotonic() < until:
                self._known[one.key] = _content(one)
            if known := self._known.get(one.key):
                yield _observed(one, known, table)


def _prefixes(pids: Iterable[int]) -> Iterator[str]:
    yield OLD_PREFIX
    for pid in pids:
        variables = proc.variables(pid, (*PREFIXES, CACHE, HOME))
        cache = variables.get(CACHE) or f"{variables.get(HOME) or '/tmp'}/.cache"
        stated = next(filter(None, map(variables.get, PREFIXES)), os.path.join(cache, IN_CACHE))
        yield os.path.join(proc.working_directory(pid), stated)


def _files(prefix: str) -> Iterator[_File]:
    folder, start = os.path.split(prefix)
    for name in proc.names_in(folder):
        rank = name[len(start) :]
        if not (name.startswith(start) and rank.isascii() and rank.isdecimal() and len(rank) <= MAX_RANK_DIGITS):
            continue
        try:
            about = os.lstat(path := os.path.join(folder, name))
        except OSError:
            continue
        if stat.S_ISREG(about.st_mode) and about.st_size:
            yield _File(path, int(rank), about)


def _content(file: _File) -> Dumped | DumpProblem:
    if file.about.st_size > MAX_BYTES:
        return "too large"
    try:
        with open(os.open(file.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as opened:
            return content(opened.read(MAX_BYTES), file.rank)
    except OSError:
        return "unreadable"
    except MalformedDump:
        return "malformed"


def _observed(file: _File, known: Dumped | DumpProblem, table: StackTable) -> RecorderDump:
    about = RecorderDump(path=file.path, rank=file.rank, written_at=file.about.st_mtime)
    if isinstance(known, str):
        return replace(about, problem=known)
    frames = {frame for _, own in known.distinct.positions for frame in own}
    positions = {one: CodePosition(one[0], one[1], one[1], one[2]) for one in frames}
    return replace(
        about,
        version=known.version,
        thread=known.thread,
        world_size=known.world_size,
        groups=known.groups,
        ledgers=known.ledgers,
        collectives=tuple(
            replace(one, stack=table.add_positions([positions[frame] for frame in own], cwd=None))
            for one, own in known.distinct.collectives()
        ),
    )
