"""A report builds the index and the wait-for graph of each sample once."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from dstack.analysis.graph.wait_graph import wait_for_graph
from dstack.analysis.index.process_index import NOTHING_ELSE, KnownElsewhere
from dstack.analysis.index.sample_index import SampleIndex
from dstack.cli import main
from dstack.files.snapshot_file import load, save
from dstack.model.diagnosis import Vertex
from dstack.model.snapshot import Sample, Snapshot
from dstack.model.vertex_keys import Key
from tests.examples.recorded import recorded


@pytest.fixture
def indexed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Sample, KnownElsewhere]]:
    """The samples of all indexes that the test builds, each with what is known beside it."""
    indexes: list[tuple[Sample, KnownElsewhere]] = []
    build = SampleIndex.__init__

    def counted(self: SampleIndex, snapshot: Snapshot, sample: Sample, known: KnownElsewhere = NOTHING_ELSE) -> None:
        indexes.append((sample, known))
        build(self, snapshot, sample, known)

    monkeypatch.setattr(SampleIndex, "__init__", counted)
    return indexes


@pytest.mark.parametrize("command", [["show", "--details"], ["show"], ["check"], ["check", "--json"]])
def test_a_report_indexes_no_sample_twice(
    tmp_path: Any, indexed: list[tuple[Sample, KnownElsewhere]], command: list[str]
) -> None:
    snapshot = load(recorded("hangs/mutual_get"))
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    save(msgspec.structs.replace(snapshot, samples=snapshot.samples[:1]), one)
    save(snapshot, two)

    CliRunner().invoke(main, [*command, str(one)])
    assert len(indexed) == 1
    indexed.clear()
    CliRunner().invoke(main, [*command, str(two)])
    assert len(indexed) == 3, "the first sample, the second, and the second with the first for what it lacks"
    assert len({(id(sample), id(known.other)) for sample, known in indexed}) == 3


@pytest.mark.parametrize("command", [["show", "--details"], ["check", "--json"]])
def test_a_report_builds_two_graphs(monkeypatch: pytest.MonkeyPatch, command: list[str]) -> None:
    built: list[SampleIndex] = []

    def counted(index: SampleIndex, *settings: float) -> dict[Key, Vertex]:
        built.append(index)
        return wait_for_graph(index, *settings)

    monkeypatch.setattr("dstack.analysis.graph.confirmation.wait_for_graph", counted)

    CliRunner().invoke(main, [*command, str(recorded("hangs/mutual_get"))])

    assert len(built) == 2, "one of the first sample, one of both"
