"""A running program of a case study, and what the commands of its page print about it.

with shared.running("case_studies/slow_leaves") as program:
    study = CaseStudy(program, tmp_path)
    study.until(lambda: "limits the throughput" in study.text("timeline"), "the step that limits is named")
    file = study.snapshot()
    document = study.document("graph", file, "--format", "json")
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tests.clusters.dstack_command import CHECK_PAUSE_S, Json, dstack
from tests.clusters.ray_clusters import Example
from tests.processes import wait_until

T = TypeVar("T")
SHOWN_S = 90.0
"""Deadline for a view to show what a page says: workers report their events once a second."""


@dataclass(frozen=True)
class CaseStudy:
    """The program, and a folder for the files that the commands write."""

    program: Example
    folder: Path

    def text(self, command: str, *options: str | Path) -> str:
        """What a command prints to standard output; it reads the cluster, or a file that is its first option."""
        done = dstack(command, *self._source(options), *map(str, options), environment=self.program.environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def document(self, command: str, *options: str | Path) -> Json:
        """The JSON that a command prints; the options choose it, such as ``--json``."""
        document: Json = json.loads(self.text(command, *options))
        return document

    def snapshot(self, *options: str) -> Path:
        """A saved snapshot with the history, which replaces the one before."""
        file = self.folder / "snapshot.json.gz"
        self.text("snapshot", "-o", file, "--force", *options)
        return file

    def is_bottleneck(self, function: str) -> bool:
        """Whether one of the first three chains of a profile ends in this function, with a fifth of the time."""
        ends = re.findall(r"^ [123]\. +([\d.]+) % +(.*)$", self.text("profile", "--duration", "15"), re.MULTILINE)
        return any(f"{function} (" in end and float(share) >= 20 for share, end in ends)

    def until(self, shown: Callable[[], T | None], what: str) -> T:
        """The first true value of ``shown``, which runs a command again and again."""
        return wait_until(
            shown, deadline_s=SHOWN_S, what=lambda: f"{what}: {self.program.output()}", pause_s=CHECK_PAUSE_S
        )

    def _source(self, options: tuple[str | Path, ...]) -> tuple[str, ...]:
        is_file = bool(options) and isinstance(options[0], Path)
        return () if is_file else ("--address", self.program.address)


def edges_of(graph: Json) -> dict[tuple[str, str], Json]:
    """The edges of a document of ``dstack graph`` by the titles of caller and callee."""
    titles = {node["id"]: node["title"] for node in graph["nodes"]}
    return {(titles[edge["source"]], titles[edge["target"]]): edge for edge in graph["edges"]}


def called_from(stacks: Json, group: str) -> Counter[str]:
    """How many executions of a group of ``dstack stacks --json`` wait in ray.get, by the function that called it."""
    found: Counter[str] = Counter()
    for one in stacks["groups"]:
        for stack in one["stacks"] if one["name"] == group else ():
            names = [frame["name"] for frame in stack["frames"]]
            if names[-1] == "ray.get":
                found[names[-2]] += stack["count"]
    return found
