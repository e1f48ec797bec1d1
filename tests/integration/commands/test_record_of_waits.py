"""``dstack record`` of a job that only waits: it says what waits, and saves no empty picture."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clusters.dstack_command import Result
from tests.clusters.shared_cluster import SharedCluster
from tests.integration.commands.test_record import record
from tests.processes import wait_until

pytestmark = pytest.mark.ray


@pytest.mark.exhaustive
def test_what_waits_is_named_where_nothing_runs(shared: SharedCluster, tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    with shared.running("hangs/mutual_get") as program:
        last: list[Result] = []

        def is_quiet() -> bool:
            path.unlink(missing_ok=True)
            last[:] = [record(program, path)]
            return not path.exists()

        wait_until(is_quiet, deadline_s=120, what=lambda: f"a recording without samples: {last[0].stderr}")

    (done,) = last
    assert (done.returncode, done.stdout) == (0, "")
    lines = done.stderr.splitlines()
    begin = lines.index("Its threads and coroutines are now:")
    assert "so nothing was saved." in lines[begin - 1]
    assert any("ray.get" in line for line in lines[begin:])
    assert lines[-1] == f"See where its time goes with: dstack profile --address {program.address} -o profile.html"
