"""A cluster that many programs share in turn, with a loaded dstack process that checks it.

    def test_it(shared: SharedCluster) -> None:
        with shared.running("two_actors"):
            shared.check()

The fixture ``shared`` is one cluster of one node for a whole session. It is idle before and after each program.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.clusters.dstack_command import CHECK_PAUSE_S, Json
from tests.clusters.ray_clusters import Example, RayCluster, ray_cluster
from tests.examples.expected import Expected
from tests.paths import PROGRAMS
from tests.processes import die_with_parent, kill_group, wait_until

SETTLED_S = 90.0
"""Deadline for a program that printed ``ready`` to get its expected verdict."""

IDLE_S = 90.0
"""Deadline for a cluster to become idle after a program."""


@dataclass(frozen=True)
class SharedCluster:
    """A running cluster, and the ``check_server.py`` process for it."""

    cluster: RayCluster
    dstack: subprocess.Popen[str]

    @contextmanager
    def running(self, name: str | Path, arguments: Sequence[str] = ()) -> Iterator[Example]:
        """Run ``examples/NAME.py``, or a program by its path, with these arguments.

        At the end the cluster is idle again, without actors and placement groups.
        """
        with self.in_use() as cluster, cluster.run_example(name, arguments) as example:
            yield example

    @contextmanager
    def in_use(self) -> Iterator[RayCluster]:
        """The cluster, idle at the start and at the end; the caller ends the programs that it starts."""
        self._wait_until_idle()
        yield self.cluster
        self._wait_until_idle()

    def check(self) -> Json:
        """The document of ``dstack check --json`` now, with the text report as ``report``."""
        document: Json = self._ask("check")
        return document

    def settled(self, expected: Expected, observe: Callable[[Json], None] = lambda _: None) -> Json:
        """The first document that meets ``expected``; ``observe`` is called with every document until then."""

        last: list[Json] = []

        def is_right() -> bool:
            last[:] = [self.check()]
            observe(last[0])
            return expected.is_met_by(last[0])

        wait_until(is_right, deadline_s=SETTLED_S, what=lambda: _difference(last[0], expected), pause_s=CHECK_PAUSE_S)
        return last[0]

    def _wait_until_idle(self) -> None:
        last: list[str] = []

        def is_idle() -> bool:
            last[:] = self._ask("busy")
            return not last

        wait_until(is_idle, deadline_s=IDLE_S, what=lambda: f"idle: there are {last}")

    def _ask(self, question: str) -> Any:
        assert self.dstack.stdin is not None
        assert self.dstack.stdout is not None
        self.dstack.stdin.write(f"{question}\n")
        self.dstack.stdin.flush()
        answer = self.dstack.stdout.readline()
        assert answer, "dstack has ended"
        return json.loads(answer)


@pytest.fixture(scope="session")
def shared() -> Iterator[SharedCluster]:
    """One node with 2 CPUs, a GPU and one unit of the resource ``licence``."""
    with shared_cluster(nodes=1, num_cpus=2, num_gpus=1, resources={"licence": 1}) as cluster:
        yield cluster


@contextmanager
def shared_cluster(nodes: int, *, nodes_settle_s: float = 0.0, **shape: Any) -> Iterator[SharedCluster]:
    """Start a cluster, as :func:`tests.clusters.ray_clusters.ray_cluster` does, with a dstack for it.

    By default no other node is expected: programs begin before a young cluster has settled.
    """
    with ray_cluster(nodes, **shape) as cluster:
        server = subprocess.Popen(
            [sys.executable, str(PROGRAMS / "tools/check_server.py"), cluster.address, str(nodes_settle_s)],
            env=cluster.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        try:
            yield SharedCluster(cluster, server)
        finally:
            kill_group(server)
            for stream in (server.stdin, server.stdout):
                assert stream is not None
                stream.close()


def _difference(document: Json, expected: Expected) -> str:
    """The unmet expectations and the actual findings."""
    return "\n".join([*expected.differences(document), json.dumps(document["findings"], indent=1)[:8000]])
