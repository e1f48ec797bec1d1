"""On real Ray, ranks that have ended are explained by the flight recorders that torch dumped before."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clusters.dstack_command import check, dstack
from tests.clusters.shared_cluster import SharedCluster
from tests.paths import PROGRAMS, ROOT

RECORDED = ROOT / "tests/unit/libraries/torch/recorder_dumps"


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "source",
    [
        pytest.param(str(RECORDED), marks=pytest.mark.ray, id="recorded"),
        pytest.param("torch", marks=pytest.mark.libraries, id="torch"),
    ],
)
def test_the_rank_that_was_behind_is_in_the_first_lines(shared: SharedCluster, tmp_path: Path, source: str) -> None:
    """Only the runtime environment of the dead actors says where the files are."""
    with shared.running(PROGRAMS / "drivers/recorder_dumps.py", [f"{tmp_path}/trace_", source]) as program:
        document = check(program.address, program.environment)
        report = dstack("check", "--address", program.address, environment=program.environment).stdout

    dumped = document["dumped"]
    assert dumped["ranks"] == [0, 1, 2, 3]
    assert dumped["is_of_ray"]
    assert not dumped["unreadable"]
    assert (dumped["difference"]["kind"], dumped["difference"]["ranks"]) == ("behind", [2])
    assert (dumped["difference"]["number"], dumped["difference"]["operation"]) == (4, "all_reduce")
    assert document["verdict"] not in ("deadlock", "hang")
    assert "rank 2 is 1 collective behind" in " ".join(report.split("\n")[:10]).replace("   ", " ")
