"""What is known of the GPUs of ranks, beside the calls that these wait in."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from msgspec.structs import replace

from dstack import words
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.observed.node import Gpu, HostFigures, Xid
from dstack.observed.processes import GpuUse
from dstack.report.check_json import check_json
from dstack.report.text import report_text
from tests.unit.analysis.graph.rank_scenes import Gang, gang

GIB = 2**30


def with_gpus(it: Gang, percents: list[float], **host: Any) -> Gang:
    """Gives each rank the GPU of its number, with this utilisation, and its node what else its host reports."""
    gpus = tuple(
        Gpu(index=at, pci=f"0000:{at:02x}:00", utilisation_percent=percent) for at, percent in enumerate(percents)
    )
    nodes = it.scene.nodes
    nodes[0] = replace(nodes[0], host=HostFigures(**{"gpus": gpus, **host}))
    for at, rank in enumerate(it.ranks):
        rank.known |= {"rank": at, "gpus": (GpuUse(index=at, memory_bytes=GIB),), "cuda": "listed"}
    return it


def mismatch(count: int = 4) -> Gang:
    """All ranks but the last are in all_reduce, which is in broadcast."""
    return gang(count).collect(range(count - 1)).collect((count - 1,), "broadcast", peer=0)


def texts(it: Gang) -> list[str]:
    """The remarks of the finding after those about calls."""
    (finding,) = it.diagnose().findings
    remarks = [step.text for step in finding.diagram.remarks]
    assert set(remarks) <= {step.text for step in finding.explanation}
    return [text for text in remarks if any(word in text for word in ("GPU", "CUDA", "Xid", "NVML"))]


def test_busy_and_idle_gpus_are_named_with_their_ranks() -> None:
    assert texts(with_gpus(mismatch(), [0.0, 0.0, 4.0, 100.0])) == [
        "GPU 3 of rank 3 is busy (100 %), the GPUs of ranks 0-2 are idle (0-4 %); a busy GPU computes, or waits "
        "in a kernel of NCCL"
    ]
    assert texts(with_gpus(mismatch(), [40.0, 0.0, 0.0, 0.0])) == [
        "GPU 0 of rank 0 is partly busy (40 %), the GPUs of ranks 1-3 are idle (0 %)"
    ]


def test_ranks_without_gpus_have_no_remark() -> None:
    assert texts(mismatch()) == []
    it = with_gpus(mismatch(), [0.0] * 4)
    for rank in it.ranks:
        rank.known |= {"gpus": (), "cuda": "none"}
    assert texts(it) == []  # a group of gloo on a node with GPUs


def test_a_rank_that_alone_uses_no_gpu_is_named() -> None:
    it = with_gpus(mismatch(), [100.0] * 4)
    it.ranks[2].known |= {"gpus": (), "cuda": "none"}

    assert texts(it) == [
        "Rank 2 holds no CUDA context",
        "The GPUs of ranks 0-1, 3 are busy (100 %); a busy GPU computes, or waits in a kernel of NCCL",
    ]


def test_of_several_gpus_that_with_most_memory_is_the_own_one() -> None:
    it = with_gpus(mismatch(3), [100.0, 0.0, 0.0])
    small = GpuUse(index=0, memory_bytes=GIB // 8)
    it.ranks[1].known |= {"gpus": (small, GpuUse(index=1, memory_bytes=GIB))}
    it.ranks[2].known |= {"gpus": (small, GpuUse(index=2, memory_bytes=None))}

    (text,) = texts(it)
    assert text.startswith("GPU 0 of rank 0 is busy (100 %), GPU 1 of rank 1 is idle (0 %)")
    assert "rank 2" not in text


def two_runs(*own: int) -> Gang:
    """Ranks 0 and 1 of one run, and two processes with these ranks of another one."""
    it = with_gpus(mismatch(), [0.0, 100.0, 0.0, 0.0])
    for rank, number in zip(it.ranks[2:], own, strict=True):
        rank.memberships = [dataclasses.replace(it.groups[number], world="tcp://b:1")]
        rank.known |= {"rank": number}
    return it


def test_ranks_of_several_runs_are_told_apart() -> None:
    in_other = "In the run at tcp://b:1: the GPUs of ranks 2-3 are idle (0 %)"

    assert [text for text in texts(two_runs(2, 3)) if "b:1" in text] == [in_other]
    assert not [text for text in texts(two_runs(2, 2)) if "b:1" in text]  # two processes claim one rank


def test_what_the_driver_and_the_kernel_report_while_the_ranks_ran_comes_first() -> None:
    it = with_gpus(mismatch(2), [100.0, 0.0])
    node = it.scene.nodes[0]
    began_at = 1_000.0
    for rank in it.ranks:
        rank.known |= {"started_at": began_at}
    gpus = (
        replace_gpu(node.host.gpus, 0, ecc_errors=2),
        replace_gpu(node.host.gpus, 1, fault="lost"),
        Gpu(index=2, pci="0000:07:00", ecc_errors=1, fault="lost"),
    )
    xids = (
        Xid(code=48, pci="0000:00:00", at=began_at - 1),
        Xid(code=79, pci="0000:01:00", at=began_at + 1),
        Xid(code=79, pci="0000:01:00", at=began_at + 2),
        Xid(code=62, pci="0000:00:00", at=began_at + 3),
        Xid(code=79, pci="0000:07:00", at=began_at + 4),
        Xid(code=31, pci="0000:ff:00", at=began_at + 5),
    )
    it.scene.nodes[0] = replace(node, host=HostFigures(gpus=gpus, xids=xids), clock_ahead_s=1.0)
    where = f"node {node.ip}"
    at = [words.time_of_day(began_at + after_s) for after_s in range(5)]

    assert texts(it)[:6] == [
        f"GPU 0 of {where} has had 2 uncorrected ECC errors since its driver was loaded",
        f"GPU 1 of {where} is lost, its driver says",
        f"Xid 79 on GPU 1 of {where} at {at[1]}: the GPU has fallen off the bus",
        f"Xid 62 on GPU 0 of {where} at {at[2]}",
        f"Xid 31 on the GPU at PCI 0000:ff:00 of {where} at {at[4]}: page fault in GPU memory",
        "GPU 0 of rank 0 is busy (100 %); a busy GPU computes, or waits in a kernel of NCCL",
    ]


def replace_gpu(gpus: tuple[Gpu, ...] | None, index: int, **changes: Any) -> Gpu:
    own = (gpus or ())[index]
    return Gpu(index=index, pci=own.pci, **{"utilisation_percent": None if index else 100.0, **changes})


def test_a_driver_that_does_not_answer_is_named_where_a_rank_has_mapped_a_gpu() -> None:
    it = with_gpus(mismatch(2), [], gpus=None, nvml_silent_s=1.4)
    for rank in it.ranks:
        rank.known |= {"gpus": None, "cuda": "mapped"}
    where = f"node {it.scene.nodes[0].ip}"

    assert texts(it) == [f"NVML has not answered on {where} for 1.4 s: the driver or a GPU may hang"]
    it.scene.nodes[0] = replace(it.scene.nodes[0], host=HostFigures(nvml_silent_s=0.5))
    assert texts(it) == []  # its first call takes so long on a healthy node, too


def test_ranks_that_wait_for_the_gpu_itself_have_the_remark_in_a_short_report() -> None:
    it = with_gpus(gang(2), [100.0, 0.0])
    for rank in it.ranks:
        rank.computes()
    analysed = AnalysedSnapshot.of(it.scene.sample().second_sample().snapshot())

    assert analysed.diagnosis.verdict == "running"
    (finding,) = analysed.diagnosis.findings
    assert "GPU 0 of rank 0 is busy (100 %)" in [step.text for step in finding.explanation][-1]
    assert ("GPU 0 of rank 0 is busy" in report_text(analysed)) == finding.is_slow


def test_details_and_json_have_the_values() -> None:
    it = with_gpus(mismatch(2), [100.0, 0.0], xids=(Xid(code=31, pci="0000:00:00", at=1.0),))
    analysed = AnalysedSnapshot.of(it.scene.sample().second_sample().snapshot())
    text = report_text(analysed, details=True)
    (of_node,) = json.loads(check_json(analysed))["gpus"]

    assert f"GPUs of node {it.scene.nodes[0].ip}" in text
    assert "rank 1, pid" in text
    assert "holds a CUDA context, 1.0 GiB of GPU 1, which is 0 % busy" in " ".join(text.split())
    assert [gpu["utilisation_percent"] for gpu in of_node["gpus"]] == [100.0, 0.0]
    assert of_node["xids"] == [{"code": 31, "pci": "0000:00:00", "at": 1.0}]
    assert [(one["rank"], one["cuda"], one["gpus"]) for one in of_node["processes"]] == [
        (0, "listed", [{"index": 0, "memory_bytes": GIB}]),
        (1, "listed", [{"index": 1, "memory_bytes": GIB}]),
    ]
