"""``dstack stacks`` on a real cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.files.snapshot_file import load
from tests.clusters.dstack_command import dstack
from tests.clusters.shared_cluster import SharedCluster
from tests.paths import PROGRAMS
from tests.processes import wait_until

pytestmark = pytest.mark.ray

SETTLED_S = 60.0


def test_the_stacks_of_a_deadlock_are_merged_listed_and_exported(shared: SharedCluster) -> None:
    with shared.running("two_actors") as program:
        where = ("--address", program.address)

        def is_settled() -> bool:
            document = json.loads(dstack("stacks", *where, "--json", environment=program.environment).stdout)
            return bool(document["activities"] == {"waiting": 3})

        wait_until(is_settled, deadline_s=SETTLED_S, what=lambda: "settled")
        merged = dstack("stacks", *where, environment=program.environment)
        listed = dstack("stacks", *where, "Cashier", "--whole", environment=program.environment)
        folded = dstack("stacks", *where, "--format", "folded", environment=program.environment)

    assert (merged.returncode, listed.returncode, folded.returncode) == (0, 0, 0)
    assert merged.stdout.startswith("3 stacks of 3 processes: 3 waiting\n")
    assert "1 × actor Cashier  in ray.get at two_actors.py:" in merged.stdout
    assert listed.stdout.startswith("1 stack of 1 process: 1 waiting\n")
    assert "waits  Cashier.order  ray.get → Kitchen.cook" in listed.stdout
    assert sorted(line.partition(";")[0] for line in folded.stdout.splitlines()) == [
        "actor Cashier",
        "actor Kitchen",
        "driver two_actors.py",
    ]


def test_spans_are_in_the_stacks_and_in_the_task_time(shared: SharedCluster, tmp_path: Path) -> None:
    with shared.running(PROGRAMS / "drivers/spans.py") as program:
        path, where = tmp_path / "s.json.gz", ("--address", program.address)
        found: dict[str, list[list[str]]] = {}

        def is_settled() -> bool:
            dstack("snapshot", *where, "-o", str(path), "--force", environment=program.environment)
            document = json.loads(dstack("stacks", str(path), "--json").stdout)
            for group in document["groups"]:
                found[group["name"]] = [[frame["name"] for frame in one["frames"]] for one in group["stacks"]]
            return document["count"] == 4 and any('span "decode"' in stack for stack in found.get("actor Server", ()))

        wait_until(is_settled, deadline_s=SETTLED_S, what=lambda: f"settled: {found}")

    assert found["actor Engine"] == [['span "generate"', 'span "prefill"', "Engine.generate"]]
    assert found["driver spans.py"] == [['span "wait for all"', "<module>", "ray.get"]]
    assert [stack[:3] for stack in found["actor Server"]] == [['span "request"', 'span "decode"', "Server.request"]]
    time = AnalysedSnapshot.of(load(path)).task_time
    assert time is not None
    paths = {tuple(step.name for step in one.frames[1:]): one.weight / 1e6 for one in time.stacks().stacks}
    assert {"read", "parse"} <= {path[-1].removeprefix('span "').removesuffix('"') for path in paths if path}
    assert 0.4 <= paths["load", 'span "load"', 'span "read"'] <= 10
