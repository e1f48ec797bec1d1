"""What was concluded from a snapshot: the wait-for graph's vertices and waits, findings, the verdict.

A vertex is anything that can wait or be waited for. Keys are stable strings within one snapshot:
``thread:WORKER/TID`` for an execution, ``task:ID`` for a task that is not known to run on one certain thread,
``group:ID`` for a placement group, ``unknown:...`` for a target nobody could observe.
"""

from __future__ import annotations

from typing import Literal

from dstack.model import Failure, Model

Evidence = Literal["exact", "inferred"]
VertexKind = Literal["execution", "task", "placement group", "unknown"]
FindingKind = Literal["deadlock", "orphaned", "infeasible", "starved", "blocked", "polling", "stalled"]
Verdict = Literal["deadlock", "hang", "stalled", "blocked", "clear"]
VERDICTS: tuple[Verdict, ...] = ("deadlock", "hang", "stalled", "blocked", "clear")
"""Worst first."""


class Target(Model, frozen=True):
    """One thing waited for: a vertex, and the ObjectRef through which it is waited for, if any."""

    vertex: str
    ref: str | None = None


class Group(Model, frozen=True):
    """``needs`` of these targets must be given before the wait ends. More needed than targets: never."""

    needs: int
    targets: tuple[Target, ...] = ()


class Wait(Model, frozen=True):
    """Why a vertex cannot go on; it holds until every group has what it needs.

    ``total`` and ``needed`` describe the call itself, with values already there counted in. ``resources`` names
    what is asked for where the wait is for resources. ``inferred`` says how, where evidence is not exact.
    """

    kind: str
    groups: tuple[Group, ...]
    evidence: Evidence = "exact"
    inferred: str | None = None
    timeout_s: float | None = None
    needed: int = 1
    total: int = 1
    resources: tuple[str, ...] = ()

    @property
    def is_timed(self) -> bool:
        """A wait with a timeout ends by itself, so it never takes part in a deadlock."""
        return self.timeout_s is not None


class Vertex(Model, frozen=True):
    """Something in the wait-for graph; which fields are set depends on ``kind``.

    ``never`` says why this can never be given (infeasible, producer gone). ``stands`` is true when a second
    sample showed the same wait again, false when only the first sample saw it. ``unobserved`` marks an unknown
    vertex that might as well be stuck: nobody could look.
    """

    key: str
    kind: VertexKind
    label: str
    worker_id: str | None = None
    os_thread_id: int | None = None
    task_id: str | None = None
    placement_group_id: str | None = None
    wait: Wait | None = None
    never: str | None = None
    stands: bool = False
    unobserved: bool = False


class FinalBlocker(Model, frozen=True):
    """What an open chain ends in, with how many wait on it directly and in all."""

    vertex: str
    waiters_direct: int
    waiters_total: int


class Step(Model, frozen=True):
    """One sentence of an explanation, and the line of code it is about, if any."""

    text: str
    file: str | None = None
    line: int | None = None
    source: str | None = None


class Finding(Model, frozen=True):
    """One conclusion.

    ``members`` are vertex keys: of a deadlock its core, the shortest cycle first and in order; of an open chain
    those that wait. ``explanation`` tells the story step by step.
    """

    kind: FindingKind
    confirmed: bool
    summary: str
    advice: str
    members: tuple[str, ...] = ()
    cycle: tuple[str, ...] = ()
    blocked_behind: tuple[str, ...] = ()
    final_blockers: tuple[FinalBlocker, ...] = ()
    resources: tuple[str, ...] = ()
    explanation: tuple[Step, ...] = ()


class Ratio(Model, frozen=True):
    """How many of how many were observed."""

    seen: int
    total: int


class Coverage(Model, frozen=True):
    """What the diagnosis rests on."""

    nodes: Ratio
    workers: Ratio
    failures: tuple[Failure, ...] = ()


class Diagnosis(Model, frozen=True):
    """The verdict on a snapshot, its findings worst first, and the graph behind them.

    ``incomplete`` is true when somebody who was not observed could change the verdict.
    """

    verdict: Verdict
    incomplete: bool
    findings: tuple[Finding, ...]
    vertices: dict[str, Vertex]
    coverage: Coverage
