"""Words and figures of nodes, workers and placement groups that the Cluster view and the report share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

from rich.text import Text

from dstack import words
from dstack.analysis.findings.rank_gpus import driver_silence, xid_in_words
from dstack.analysis.index.process_index import newest_processes
from dstack.analysis.naming import names
from dstack.analysis.stacks.app_threads import Activity
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.inventory import ClusterInventory, WorkerSummary
from dstack.analysis.views.node_resources import GroupOnNode
from dstack.analysis.views.stack_pages import worker_name
from dstack.analysis.views.worker_groups import BundlePlace
from dstack.analysis.views.worker_state import CPU, Figure, Total, WorkerFigures
from dstack.model.snapshot import Node
from dstack.observed.node import DiskUse, Gpu
from dstack.observed.processes import CudaUse, GpuUse, Process
from dstack.report.rich_text import SafeText
from dstack.words import grouped

MARKS: dict[Activity, tuple[str, str]] = {
    "stuck": ("✖ stuck", "bold red"),
    "waiting": ("… waits", "yellow"),
    "running": ("▶ runs", "green"),
    "idle": ("○ idle", "dim"),
    "unreadable": ("? unreadable", "magenta"),
    "not read": ("? not read", "magenta"),
}
"""The words say the same as the colours."""
UNKNOWN = "-"
GIB = 2**30
SHOWN_XIDS, SHOWN_NODES = 3, 20
CUDA_WORDS: dict[CudaUse, str] = {
    "listed": "holds a CUDA context",
    "mapped": "has mapped devices of NVIDIA's driver",
    "none": "holds no CUDA context",
}
DISK_WORDS: dict[DiskUse, str] = {"object store": "files of the object store"}


def queued_calls(inventory: ClusterInventory, occupant: WorkerSummary) -> str:
    """The number of queued calls; a lower bound unless all submitters were read."""
    least = "" if inventory.is_queue_known else "at least "
    return f"{least}{words.plural(occupant.queued, 'queued call')}"


def worker_notes(inventory: ClusterInventory, occupant: WorkerSummary) -> list[str]:
    """What a worker holds, its queue, and what of it was not read."""
    held = inventory.held_by(occupant.worker.worker_id)
    queued = queued_calls(inventory, occupant) if occupant.queued else ""
    context = CUDA_WORDS["none"] if occupant.figures.cuda == "none" and occupant.ranks.rank is not None else ""
    return [note for note in (f"holds {held}" if held else "", queued, context, occupant.trouble or "") if note]


def resident_in_words(resident: GroupOnNode) -> str:
    """``placement group trainers: bundles 0 and 1  CPU 2 of 2 used, 0 free``."""
    group, numbers = resident.group, [str(number) for number in resident.bundles]
    state = "" if group.state == "CREATED" else f" ({group.state})"
    bundles = f"{words.word(len(numbers), 'bundle')} {words.listed(numbers)} of {len(group.bundles)}"
    return f"{names.placement_group(group)}{state}: {bundles}  {' · '.join(one.words for one in resident.amounts)}"


def bundle_in_words(bundle: BundlePlace) -> str:
    """``bundle 0 on node 10.0.0.1  CPU 1 of 1 used, 0 free``."""
    place = f"on {names.node(bundle.node)}" if bundle.node else "not placed"
    return f"bundle {bundle.number} {place}  {' · '.join(one.words for one in bundle.amounts)}"


def worker_cell(figure: Figure, figures: WorkerFigures) -> str:
    """A figure in a few cells; ``~`` marks an average since the start of the process."""
    value = figure.value(figures)
    if value is None:
        return UNKNOWN
    return ("~" if figure is CPU and figures.is_cpu_average else "") + figure.text(value)


def total_cell(figure: Figure, total: Total) -> str:
    """A total in a few cells; ``≥`` marks a sum without some unknown figures."""
    if total.value is None:
        return UNKNOWN
    return ("≥" if total.is_least else "") + figure.text(total.value)


def host_figures(node: Node) -> list[str]:
    """CPUs, load and memory of the host; empty if no probe reached it."""
    figures = []
    if node.host.cpu_count is not None:
        figures.append(f"host: {node.host.cpu_count} CPUs")
    if node.host.cpu_percent is not None:
        figures.append(f"{node.host.cpu_percent:.0f} % busy")
    if node.host.load_1m is not None:
        figures.append(f"load {node.host.load_1m:.1f}")
    if node.host.memory_total_bytes is not None and node.host.memory_available_bytes is not None:
        used = node.host.memory_total_bytes - node.host.memory_available_bytes
        figures.append(f"memory {used / GIB:.1f} of {node.host.memory_total_bytes / GIB:.1f} GiB used")
    return figures


def disk_figures(node: Node) -> list[str]:
    """The free space of each file system, with what Ray uses it for; equal ones are taken for one file system."""
    uses = grouped(
        ((disk.total_bytes, disk.free_bytes), DISK_WORDS.get(disk.use, disk.use)) for disk in node.host.disks
    )
    return [
        f"{words.listed(list(dict.fromkeys(of)))} {free / GIB:.1f} of {size / GIB:.1f} GiB free"
        for (size, free), of in uses.items()
    ]


def disk_paths(node: Node) -> str:
    """The directories of Ray on a node."""
    return ", ".join(f"{DISK_WORDS.get(disk.use, disk.use)} {disk.path}" for disk in node.host.disks)


def gpu_figures(node: Node) -> list[str]:
    """Each GPU of a node, as far as its driver reports it, then the last errors, and whether the driver is silent."""
    figures = [_gpu(gpu) for gpu in node.host.gpus or ()]
    figures += [xid_in_words(xid, node) for xid in node.host.xids[-SHOWN_XIDS:]]
    return [*figures, *([driver_silence(node)] if node.host.nvml_silent_s is not None else [])]


def _gpu(gpu: Gpu) -> str:
    parts = []
    if gpu.memory_used_bytes is not None and gpu.memory_total_bytes is not None:
        parts.append(f"{gpu.memory_used_bytes / GIB:.1f} of {gpu.memory_total_bytes / GIB:.1f} GiB")
    if gpu.utilisation_percent is not None:
        parts.append(f"{gpu.utilisation_percent:.0f} % busy")
    for value, unit in ((gpu.sm_clock_mhz, "MHz"), (gpu.temperature_c, "°C"), (gpu.power_w, "W")):
        parts += [f"{value:.0f} {unit}"] if value is not None else []
    if gpu.ecc_errors:
        parts.append(words.plural(gpu.ecc_errors, "uncorrected ECC error"))
    if gpu.fault is not None:
        parts.append(gpu.fault)
    return f"GPU {gpu.index}{f' {gpu.name}' if gpu.name else ''}: {', '.join(parts) or 'use unknown'}"


def process_figures(process: Process) -> Text:
    """The memory and the CPU time of a process, and how it was read if not from its memory."""
    text = SafeText()
    if process.started_at:
        text.append(f", {process.rss_bytes / GIB:.2f} GiB resident, {process.cpu_s:.1f} s of CPU time")
    if process.access != "memory" and process.threads:
        text.append(f", read by {process.access} only", "yellow")
    return text


def use_in_words(figures: WorkerFigures, process: Process, gpus: Mapping[int, Gpu]) -> Iterator[str]:
    """Its CPU use and how that was measured, its threads and child processes, and the GPUs that it uses."""
    if figures.cpu_percent is not None:
        over = f"over {words.short_duration(figures.cpu_over_s)}"
        since = "on average since its start" if figures.is_cpu_average else over
        yield f"CPU {figures.cpu_percent:.1f} % {since}"
    if figures.num_threads is not None:
        yield words.plural(figures.num_threads, "thread")
    if process.children:
        resident = sum(child.rss_bytes for child in process.children)
        count = words.plural(len(process.children), "child process", "child processes")
        yield f"{count} with {resident / GIB:.2f} GiB resident"
    yield from gpu_uses(process, gpus)


def gpu_uses(process: Process, gpus: Mapping[int, Gpu]) -> Iterator[str]:
    """Whether a process has a CUDA context, and what it uses of each GPU; nothing without NVIDIA's driver."""
    if process.cuda is not None:
        yield CUDA_WORDS[process.cuda]
    for use in process.gpus or ():
        yield _gpu_use(use, gpus)


def gpu_details(analysed: AnalysedSnapshot) -> Iterator[tuple[Node, list[str]]]:
    """The first nodes with GPUs, the figures of these, and the ranks and other processes that use them."""
    processes = newest_processes(analysed.snapshot)
    workers = words.grouped((worker.node_id, worker) for worker in analysed.snapshot.workers)
    found = ((node, gpu_figures(node)) for node in analysed.snapshot.nodes)
    for node, figures in islice(((node, figures) for node, figures in found if figures), SHOWN_NODES):
        gpus = {gpu.index: gpu for gpu in node.host.gpus or ()}
        for worker in workers.get(node.node_id, ()):
            process, ranks = processes.get(worker.worker_id), analysed.first_index.ranks(worker.worker_id)
            if process and process.cuda and (process.cuda != "none" or ranks.rank is not None):
                who = ", ".join(filter(None, (ranks.in_words, f"pid {worker.pid}")))
                name = worker_name(analysed.first_index, worker)
                figures.append(f"{name}, {who}: {', '.join(gpu_uses(process, gpus))}")
        yield node, figures


def _gpu_use(use: GpuUse, gpus: Mapping[int, Gpu]) -> str:
    memory = f"{use.memory_bytes / GIB:.1f} GiB" if use.memory_bytes is not None else "unknown memory"
    gpu = gpus.get(use.index)
    busy = gpu.utilisation_percent if gpu else None
    return f"{memory} of GPU {use.index}" + (f", which is {busy:.0f} % busy" if busy is not None else "")
