"""The GPUs of ranks beside their calls: which are busy or idle, which ranks use none, and what their driver reports.

A rank in a collective of NCCL waits in a kernel, of which its stack shows nothing. None of this changes a verdict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from dstack import words
from dstack.analysis.findings.finding_facts import FindingFacts
from dstack.analysis.findings.narration import more
from dstack.analysis.index.process_index import newest_processes
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming import names
from dstack.model.diagnosis import Step
from dstack.model.snapshot import Node
from dstack.observed.node import Gpu, Xid
from dstack.observed.processes import Process

BUSY, IDLE = 90.0, 5.0
"""The utilisation in percent from which a GPU is busy, and up to which it is idle."""
SILENT_S = 1.0
"""The first call of the driver may take a part of a second on a healthy node."""
SHOWN_STEPS = 6
XIDS: Mapping[int, str] = {
    13: "exception of the graphics engine",
    31: "page fault in GPU memory",
    43: "the GPU stopped processing",
    48: "double bit ECC error",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    94: "contained ECC error",
    95: "uncontained ECC error",
    119: "the GPU's system processor (GSP) does not answer",
}
"""What the numbers mean that are seen most, by NVIDIA's list of Xid errors."""


@dataclass(frozen=True, slots=True)
class _Rank:
    """A rank with its process, as the newest sample has it, and its node."""

    rank: int
    process: Process
    node: Node

    @property
    def gpu(self) -> Gpu | None:
        """The GPU that it uses; of several, the one of which it uses most memory. None if that is unknown."""
        sizes = {use.index: use.memory_bytes for use in self.process.gpus or ()}
        if len(sizes) > 1 and None in sizes.values():
            return None
        index = max(sizes, key=lambda one: sizes[one] or 0, default=None)
        return next((gpu for gpu in self.node.host.gpus or () if gpu.index == index), None)


class RankGpus:
    """The GPUs of all ranks of one snapshot."""

    def __init__(self, index: SampleIndex) -> None:
        self._index = index
        hosts = ((node, node.host) for node in index.snapshot.nodes)
        self._has_any = any(host.gpus or host.xids or host.nvml_silent_s is not None for _, host in hosts)

    def steps(self, facts: FindingFacts) -> tuple[Step, ...]:
        """What is known of the GPUs of the ranks that take part in a finding, and of all others of their run."""
        runs = self._runs_beside(facts) if self._has_any else {}
        ranks = [one for of_run in runs.values() for one in of_run]
        if not any(one.process.gpus or one.process.cuda in ("listed", "mapped") for one in ranks):
            return ()
        of_nodes = words.grouped((one.node.node_id, one) for one in ranks).values()
        found = list(chain.from_iterable(map(_faults, of_nodes)))
        for run, of_run in runs.items():
            lead = f"in the run at {run}: " if len(runs) > 1 else ""
            if len({one.rank for one in of_run}) == len(of_run) and (run or not lead):
                found += [f"{lead}{text}" for text in (*_without_context(of_run), *_use_in_words(of_run))]
        shown = (Step(text=words.capitalised(text)) for text in found[:SHOWN_STEPS])
        return (*shown, *more(len(found) - SHOWN_STEPS, "reports of GPUs"))

    def _runs_beside(self, facts: FindingFacts) -> dict[str, list[_Rank]]:
        """All ranks of each run that takes part; where its identity is unknown, only those that take part."""
        vertices = chain(facts.waits, facts.ends, facts.behind)
        workers = dict.fromkeys(vertex.worker_id for vertex in vertices if vertex.worker_id)
        own = words.grouped(pair for worker_id in workers for pair in self._of_worker(worker_id))
        return {run: sorted(self._by_run[run] if run else own[run], key=lambda one: one.rank) for run in own}

    @cached_property
    def _by_run(self) -> dict[str, list[_Rank]]:
        """All ranks by the identity of their run."""
        return words.grouped(pair for worker_id in self._index.processes for pair in self._of_worker(worker_id))

    def _of_worker(self, worker_id: str) -> Iterator[tuple[str, _Rank]]:
        """The ranks among a worker's process and those below it, each with its run, empty if unknown."""
        worker, newest = self._index.workers.get(worker_id), self._newest.get(worker_id)
        node = self._index.nodes.get(worker.node_id) if worker else None
        for process in newest.family if newest and node else ():
            ranks = self._index.ranks(worker_id, process.pid if process.parent_pid is not None else None)
            if ranks.rank is not None and node is not None:
                yield ranks.world, _Rank(ranks.rank, process, node)

    @cached_property
    def _newest(self) -> dict[str, Process]:
        return newest_processes(self._index.snapshot)


def _without_context(ranks: Sequence[_Rank]) -> Iterator[str]:
    """``rank 2 holds no CUDA context``: it has mapped neither a device nor the library of the driver."""
    found = [one.rank for one in ranks if one.process.cuda == "none"]
    if 0 < len(found) < len(ranks):
        yield f"{names.ranks(found)} {words.word(len(found), 'holds', 'hold')} no CUDA context"


def _use_in_words(ranks: Sequence[_Rank]) -> Iterator[str]:
    """``GPU 1 of rank 3 is busy (100 %), the GPUs of ranks 0-2 are idle (0 %)``."""
    known = [(one, gpu) for one in ranks if (gpu := one.gpu) and gpu.utilisation_percent is not None]
    by_state = words.grouped((_state(gpu), (one.rank, gpu)) for one, gpu in known)
    parts = [_alike(state, by_state[state]) for state in ("busy", "partly busy", "idle") if state in by_state]
    if not parts:
        return
    of_nccl = "; a busy GPU computes, or waits in a kernel of NCCL" if "busy" in by_state else ""
    yield f"{', '.join(parts)}{of_nccl}"


def _state(gpu: Gpu) -> str:
    percent = gpu.utilisation_percent or 0.0
    return "busy" if percent >= BUSY else "idle" if percent <= IDLE else "partly busy"


def _alike(state: str, alike: Sequence[tuple[int, Gpu]]) -> str:
    ranks, gpus = [rank for rank, _ in alike], [gpu for _, gpu in alike]
    percents = sorted({round(gpu.utilisation_percent or 0.0) for gpu in gpus})
    percent = "-".join(map(str, dict.fromkeys((percents[0], percents[-1]))))
    subject, verb = (f"GPU {gpus[0].index}", "is") if len(alike) == 1 else ("the GPUs", "are")
    return f"{subject} of {names.ranks(ranks)} {verb} {state} ({percent} %)"


def _faults(ranks: Sequence[_Rank]) -> Iterator[str]:
    """What the driver and the kernel report of the GPUs of these ranks of one node, while their processes ran."""
    node, host = ranks[0].node, ranks[0].node.host
    is_known = all(one.process.gpus is not None for one in ranks)
    used = {use.index for one in ranks for use in one.process.gpus or ()}
    for gpu in host.gpus or ():
        if gpu.index in used or not is_known:
            yield from _faults_of(gpu, node)
    began_at = min(one.process.started_at for one in ranks)
    index = {gpu.pci: gpu.index for gpu in host.gpus or () if gpu.pci}
    last = {(xid.code, xid.pci): xid for xid in host.xids if xid.at >= began_at}
    for xid in last.values():
        if not is_known or index.get(xid.pci) in (None, *used):
            yield xid_in_words(xid, node)
    if host.nvml_silent_s is not None and host.nvml_silent_s >= SILENT_S:
        yield f"{driver_silence(node)}: the driver or a GPU may hang"


def _faults_of(gpu: Gpu, node: Node) -> Iterator[str]:
    where = f"GPU {gpu.index} of {names.node(node)}"
    if gpu.fault is not None:
        yield f"{where} {'is lost' if gpu.fault == 'lost' else gpu.fault}, its driver says"
    if gpu.ecc_errors:
        yield f"{where} has had {words.plural(gpu.ecc_errors, 'uncorrected ECC error')} since its driver was loaded"


def xid_in_words(xid: Xid, node: Node) -> str:
    """``Xid 79 on GPU 0 of node 10.0.0.1 at 03:58:10: the GPU has fallen off the bus``."""
    index = next((gpu.index for gpu in node.host.gpus or () if gpu.pci == xid.pci), None)
    which = f"the GPU at PCI {xid.pci}" if index is None else f"GPU {index}"
    meaning = f": {XIDS[xid.code]}" if xid.code in XIDS else ""
    at = words.time_of_day(xid.at - (node.clock_ahead_s or 0.0))
    return f"Xid {xid.code} on {which} of {names.node(node)} at {at}{meaning}"


def driver_silence(node: Node) -> str:
    """``NVML has not answered on node 10.0.0.1 for 1.4 s``."""
    return f"NVML has not answered on {names.node(node)} for {words.short_duration(node.host.nvml_silent_s or 0.0)}"
