"""What each of some changes frees of a deadlock: the changed wait-for graph is reduced again.

In the changed graph an actor or placement group that holds resources does not end: a freed program may need it longer.
Where any of several things may end a wait, a change counts as certain only if it frees all of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, islice

from dstack import words
from dstack.analysis.findings.changes import changes_of
from dstack.analysis.findings.deadlock_scope import Change, DeadlockScope
from dstack.analysis.naming.descriptions import labels_of
from dstack.analysis.naming.vertex_details import VertexDetails
from dstack.analysis.solve.reduction import residue
from dstack.analysis.solve.requirements import Waits
from dstack.model.diagnosis import Cure, Vertex, WaitKind
from dstack.model.vertex_keys import Key

MAX_EDGES = 20_000
"""Bounds the work of all reductions; of a very large deadlock only some single changes are tried."""
MAX_CHANGES = 32
MAX_PAIRED = 12
MAX_CURES = 8
"""The changes that are tried, those that are tried in pairs, and the cures of a finding."""
ANY_MAY_BE_IT: tuple[WaitKind, ...] = ("other", "future", "order", "arguments", "executor", "lock", "perhaps ray.get")
"""The waits for any of several things of which only one is known to be the right one, but not which."""
HOLDS = ("end of actor", "removal")
SHOWN = 3
"""The changes of which a fix names one."""


def cures_of(scope: DeadlockScope) -> tuple[Cure, ...]:
    """The changes that free a deadlock, or part of it, the smallest first, then those that only move it."""
    graph = ChangedGraph(scope)
    tries = max(2, MAX_EDGES // max(1, graph.edges))
    changes = changes_of(scope)[: min(tries, MAX_CHANGES)]
    single = [graph.cure([change]) for change in changes]
    found = [cure for cure in single if cure.freed]
    if not any(cure.frees_all for cure in found):
        found += _pairs(graph, changes[:MAX_PAIRED], single, tries)
    moving = (cure for cure in single if not cure.freed and cure.same_way)
    ranked = sorted(found, key=_rank)
    return tuple(islice((*ranked[: MAX_CURES - 1], *moving), MAX_CURES))


def fix_of(cures: Sequence[Cure]) -> str:
    """The best changes that are alike, of which each is enough, as sentences; empty if none frees anything."""
    first = next((cure for cure in cures if cure.freed), None)
    if first is None:
        return ""
    texts = list(dict.fromkeys(cure.text for cure in cures if _rank(cure) == _rank(first)))
    best = texts[: SHOWN if first.frees_all else 1]
    sentences = [f"{words.capitalised('; or '.join(best))}."]
    if not first.frees_all:
        sentences.append(f"This frees only {first.freed} of {first.total}.")
    elif not first.is_certain:
        sentences.append(f"{'Each of these' if len(best) > 1 else 'This'} probably frees all.")
    if moving := next((cure for cure in cures if cure.same_way and not cure.freed), None):
        sentences.append(f"It is not enough to {moving.text} if another {moving.same_way[0]} waits in the same way.")
    return " ".join(sentences)


def _rank(cure: Cure) -> tuple[bool, bool, bool, int]:
    """What frees all before what frees a part; where cures are equal, the smallest stays first."""
    return not cure.frees_all, "dropped wait" in cure.kinds, not cure.is_certain, -cure.freed


def _pairs(graph: ChangedGraph, changes: Sequence[Change], single: Sequence[Cure], tries: int) -> list[Cure]:
    """The pairs that free more than each of their changes alone, smallest first; only those that free all if any do."""
    alone = {id(change): cure.freed for change, cure in zip(changes, single, strict=False)}
    pairs = sorted(combinations(changes, 2), key=lambda pair: pair[0].cost + pair[1].cost)
    tried = ((pair, graph.cure(pair)) for pair in pairs[:tries])
    better = [cure for pair, cure in tried if cure.freed > max(alone[id(change)] for change in pair)]
    return [cure for cure in better if cure.frees_all] or better


@dataclass(frozen=True)
class StillStuck:
    """The vertices that remain stuck in a changed graph: if the right one of several wakers is the last, and at all."""

    at_worst: set[Key]
    at_least: set[Key]


class ChangedGraph:
    """The waits of a deadlock and of what is blocked behind it; all others count as able to proceed."""

    def __init__(self, scope: DeadlockScope) -> None:
        self._scope = scope
        reduced = scope.draft.reduced
        self._waits = {key: _requirements(reduced.waits.get(key, []), one) for key, one in scope.vertices.items()}
        self._strict = {key: _all_of(scope.vertices[key], found) for key, found in self._waits.items()}
        self._has_choices = self._strict != self._waits
        self._counted = [key for key in scope.vertices if reduced.is_counted(key)] or list(scope.vertices)
        awaited = {target for found in self._waits.values() for _, targets in found for target in targets}
        self._with_others = not (awaited & reduced.stuck <= scope.vertices.keys())
        self.edges = sum(1 + len(targets) for found in self._waits.values() for _, targets in found)

    def stuck_after(self, changes: Sequence[Change]) -> StillStuck:
        """What remains stuck after these changes."""
        at_least = _stuck(self._waits, changes)
        return StillStuck(_stuck(self._strict, changes) if self._has_choices else at_least, at_least)

    def cure(self, changes: Sequence[Change]) -> Cure:
        """What these changes free together, in words."""
        stuck = self.stuck_after(changes)
        left = tuple(key for key in self._counted if key in stuck.at_least)
        is_certain = not any(key in stuck.at_worst for key in self._counted if key not in stuck.at_least)
        place = next((one.place for one in changes if one.place), VertexDetails(execution=""))
        return Cure(
            kinds=tuple(change.kind for change in changes),
            text=words.listed([change.text for change in changes]),
            freed=len(self._counted) - len(left),
            total=len(self._counted),
            left=left,
            is_certain=is_certain,
            starts=self._functions(changes, stuck.at_least, is_stuck=False),
            same_way=self._functions(changes, stuck.at_least, is_stuck=True),
            with_others=self._with_others,
            file=place.file,
            line=place.line,
            source=place.source,
        )

    def _functions(self, changes: Sequence[Change], stuck: set[Key], *, is_stuck: bool) -> tuple[str, ...]:
        """The names of calls that would start, and end, or wait as the running ones do."""
        calls = (call for change in changes for call in change.starts)
        return tuple(labels_of(call for call in calls if (call.key in stuck) == is_stuck))


def _stuck(waits: Waits, changes: Sequence[Change]) -> set[Key]:
    changed = dict(waits)
    for change in changes:
        change.edit(changed)
    return residue(changed)


def _requirements(found: list[tuple[int, list[Key]]], vertex: Vertex) -> list[tuple[int, list[Key]]]:
    """The requirements of a wait; what holds resources does not end."""
    return [(1, [])] if vertex.subject.what in HOLDS else found


def _all_of(vertex: Vertex, found: list[tuple[int, list[Key]]]) -> list[tuple[int, list[Key]]]:
    """The requirements if the right one of several things is the last that proceeds; no code ends what it can use."""
    if vertex.kind == "lifetime":
        return [(1, [])]
    if vertex.wait is None or vertex.wait.kind not in ANY_MAY_BE_IT:
        return found
    return [(len(targets) or needs, targets) for needs, targets in found]
