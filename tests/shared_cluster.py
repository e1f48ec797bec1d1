"""One cluster for many programs in turn, and a dstack that stays loaded to look at it.

with shared_cluster(num_cpus=2) as cluster:
    for name in names:
        with cluster.running(name):
            cluster.look()
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

from tests.clusters import Example, RayCluster, ray_cluster
from tests.command import Json
from tests.expected import Expected
from tests.processes import die_with_parent, kill_group, wait_until

PROGRAMS = Path(__file__).parent / "integration" / "programs"
SETTLED_S = 90.0
"""Deadline for a program that said ``ready`` to be judged as expected."""

IDLE_S = 90.0
"""Deadline for a cluster to be as it was before a program ran on it."""


@dataclass(frozen=True)
class SharedCluster:
    """A running cluster, and the process that answers for dstack."""

    cluster: RayCluster
    dstack: subprocess.Popen[str]

    @contextmanager
    def running(self, name: str | Path, arguments: Sequence[str] = ()) -> Iterator[Example]:
        """Run ``examples/NAME.py``, or a program by its path, with these arguments.

        At the end the cluster is idle again, without actors and placement groups.
        """
        with self.cluster.run_example(name, arguments) as example:
            yield example
        self._wait_until_idle()

    def look(self) -> Json:
        """What ``dstack check --json`` says now."""
        told: Json = self._ask("check")
        return told

    def settled(self, expected: Expected, seen: Callable[[Json], None] = lambda told: None) -> Json:
        """The first look that shows what is expected. ``seen`` is told of every look on the way."""
        last: list[Json] = []

        def is_right() -> bool:
            last[:] = [self.look()]
            seen(last[0])
            return expected.is_met_by(last[0])

        wait_until(is_right, deadline_s=SETTLED_S, what=lambda: _difference(last[0], expected))
        return last[0]

    def _wait_until_idle(self) -> None:
        last: list[str] = []

        def is_idle() -> bool:
            last[:] = self._ask("left")
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


@contextmanager
def shared_cluster(nodes: int, **shape: Any) -> Iterator[SharedCluster]:
    """Start a cluster, as :func:`tests.clusters.ray_cluster` does, with a dstack for it."""
    with ray_cluster(nodes, **shape) as cluster:
        server = subprocess.Popen(
            [sys.executable, str(PROGRAMS / "check_server.py"), cluster.address],
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


def _difference(told: Json, expected: Expected) -> str:
    """What is not as expected, and all that is told instead."""
    return "\n".join([*expected.differences(told), json.dumps(told["findings"], indent=1)[:8000]])
