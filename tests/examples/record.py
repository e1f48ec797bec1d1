"""Record the examples on real Ray: ``python -m tests.examples.record [PATTERN]``, about 25 minutes for all of them.

Writes ``tests/recorded/FOLDER/NAME.json.gz`` for each example whose name matches the regular expression. Snapshots are
recorded for at most 90 s, until a diagnosis meets the example's docstring. The exit code is 1 if an example was not
recorded.
"""

from __future__ import annotations

import gzip
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.files.snapshot_file import load, save
from dstack.model.snapshot import Snapshot
from tests.clusters.dstack_command import CHECK_PAUSE_S, dstack
from tests.clusters.ray_clusters import RayCluster
from tests.clusters.shared_cluster import SETTLED_S, SharedCluster, shared_cluster
from tests.clusters.two_sites import TWO_SITES
from tests.examples.expected import Expected, expected_of
from tests.examples.recorded import NAMES, document_with_report, recorded
from tests.paths import EXAMPLES, ROOT

SHAPES = {
    None: {"nodes": 1, "num_cpus": 2, "num_gpus": 1, "resources": {"licence": 1}},
    "two nodes": {"nodes": 2, "num_cpus": 1},
    "two sites": TWO_SITES,
    "small object store": {"nodes": 1, "num_cpus": 4, "object_store_memory": 200 * 2**20},
    "nodes that come and go": {"nodes": 1, "num_cpus": 1},
}
"""The clusters by the ``Needs`` of a program. Each program of a folder ``libraries`` has its own cluster."""
PLACES = {f"{sys.prefix}/": "/venv/", f"{sys.base_prefix}/": "/usr/", f"{ROOT}/": ""}
"""Replacements for this machine's folders in recorded paths."""


def main() -> None:
    pattern = re.compile(sys.argv[1] if len(sys.argv) > 1 else "")
    names = [name for name in NAMES if pattern.search(name)]
    missing = [name for name, is_recorded in _record_all(names) if not is_recorded]
    sys.exit(f"Not recorded: {', '.join(missing)}" if missing else 0)


def _record_all(names: list[str]) -> Iterator[tuple[str, bool]]:
    for needs, shape in SHAPES.items():
        group = [name for name in names if _needs(name) == needs and not _is_of_libraries(name)]
        if group:
            with shared_cluster(**shape) as cluster:  # type: ignore[arg-type]
                for name in group:
                    yield name, _record_on(cluster, name)
    for name in filter(_is_of_libraries, names):
        with shared_cluster(nodes=1, num_cpus=2) as cluster:
            yield name, _record_on(cluster, name, is_alone=True)


def _record_on(shared: SharedCluster, name: str, *, is_alone: bool = False) -> bool:
    expected = expected_of(EXAMPLES / f"{name}.py")
    with _running(shared, name, is_alone=is_alone):
        deadline = time.monotonic() + SETTLED_S
        while not (is_recorded := _record(shared.cluster, name, expected)) and time.monotonic() < deadline:
            time.sleep(CHECK_PAUSE_S)
    print(f"{name}: {'recorded' if is_recorded else 'not as expected'}", flush=True)
    return is_recorded


@contextmanager
def _running(shared: SharedCluster, name: str, *, is_alone: bool) -> Iterator[None]:
    """Run an example. A cluster that is not used again does not have to be idle at the end."""
    with shared.cluster.run_example(name) if is_alone else shared.running(name):
        yield


def _record(cluster: RayCluster, name: str, expected: Expected) -> bool:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "snapshot.json.gz"
        dstack("snapshot", "--address", cluster.address, "-o", str(file), environment=cluster.environment)
        return file.exists() and keep(file, name, expected, PLACES)


def keep(file: Path, name: str, expected: Expected, places: Mapping[str, str]) -> bool:
    """Save a snapshot as that of an example, if it meets the expectations, without traces of earlier programs."""
    text = gzip.decompress(file.read_bytes()).decode()
    for place, instead in places.items():
        text = text.replace(place, instead)
    file.write_bytes(gzip.compress(text.encode()))
    target = recorded(name)
    target.parent.mkdir(parents=True, exist_ok=True)
    save(_without_ended_jobs(load(file)), file, force=True)
    if not expected.is_met_by(document_with_report(AnalysedSnapshot.of(load(file)))):
        return False
    target.write_bytes(file.read_bytes())
    return True


def _without_ended_jobs(snapshot: Snapshot) -> Snapshot:
    """The snapshot without jobs that have ended, and without their dead actors."""
    ended = {job.job_id for job in snapshot.jobs if job.is_dead}
    actors = tuple(one for one in snapshot.actors if one.job_id not in ended or one.state != "DEAD")
    kept = {actor.job_id for actor in actors}
    jobs = tuple(job for job in snapshot.jobs if not job.is_dead or job.job_id in kept)
    return msgspec.structs.replace(snapshot, actors=actors, jobs=jobs)


def _needs(name: str) -> str | None:
    return expected_of(EXAMPLES / f"{name}.py").needs


def _is_of_libraries(name: str) -> bool:
    return "libraries" in name.split("/")


if __name__ == "__main__":
    main()
