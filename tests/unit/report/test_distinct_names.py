"""No two entries, boxes, lines or rows of any recorded snapshot read the same."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from dstack.analysis.index.ray_libraries import part_of
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.call_graph import CallGraph
from dstack.analysis.views.timeline_rows import GROUPINGS, TimelineRows
from dstack.analysis.views.wait_tree import WaitTree
from dstack.files.snapshot_file import load
from dstack.model.diagnosis import Entry, Finding
from dstack.report.calls_text import node_title
from dstack.report.graph_svg import shown_lines
from dstack.report.page.waits_section import drawing
from dstack.tui.views.waits_view import WaitDetails, WaitLines
from dstack.tui.widgets.outline import Line
from dstack.words import distinct
from tests.paths import RECORDED_CLUSTERS

CLUSTERS = sorted(RECORDED_CLUSTERS.glob("*.json.gz"))
DEPTH = 6


def entries_of(finding: Finding) -> list[Entry]:
    return [row for row in finding.diagram.rows if isinstance(row, Entry)]


def repeated(texts: Iterable[Hashable]) -> list[Hashable]:
    texts = list(texts)
    return sorted({text for text in texts if texts.count(text) > 1}, key=str)


def repeated_lines(lines: Sequence[Line], depth: int = DEPTH) -> Iterator[Hashable]:
    yield from repeated(line.text.plain for line in lines)
    for line in lines if depth else ():
        yield from repeated_lines(line.children() if callable(line.children) else line.children, depth - 1)


def names_its_actor(analysed: AnalysedSnapshot, entry: Entry) -> bool:
    vertex = analysed.diagnosis.vertices[entry.vertex] if entry.vertex else None
    worker = analysed.merged_index.workers.get((vertex.worker_id if vertex else None) or "")
    actor = analysed.merged_index.actors.get((worker.actor_id if worker else None) or "")
    if actor is None or not actor.name or part_of(actor):
        return True
    text = " ".join((entry.name, *entry.place))
    return actor.name in text and actor.class_name in text


def assert_nothing_reads_the_same(analysed: AnalysedSnapshot) -> None:
    for finding in analysed.diagnosis.findings:
        assert not repeated((one.name, one.place, one.file, one.line) for one in entries_of(finding))
        assert all(names_its_actor(analysed, one) for one in entries_of(finding))
    assert not repeated(shown_lines(box.title, box.lines) for box in drawing(analysed).boxes)
    tree = WaitTree(analysed.merged_index, analysed.diagnosis)
    assert not list(repeated_lines(WaitLines(analysed, tree, WaitDetails(analysed)).lines()))
    for grouping in GROUPINGS if analysed.timeline else ():
        assert analysed.timeline
        tracks = TimelineRows(analysed.timeline, grouping).tracks
        assert not repeated((track.group, track.title) for track in tracks)
    for graph in (CallGraph.of(analysed), CallGraph.of(analysed, by="instance")):
        assert not repeated(node_title(graph, node.key) for node in graph.nodes)


@pytest.mark.parametrize("path", CLUSTERS, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_nothing_of_a_cluster_reads_the_same(path: Path) -> None:
    assert_nothing_reads_the_same(AnalysedSnapshot.of(load(path)))


def test_a_text_gets_no_more_details_than_it_takes() -> None:
    texts = ["step", "step", "step", "train"]
    details = [("rank 0", "pid 1"), ("rank 1", "pid 2"), ("rank 1", "pid 3"), ("rank 2", "pid 4")]

    assert distinct(texts, details) == [("rank 0",), ("rank 1", "pid 2"), ("rank 1", "pid 3"), ()]
