"""The wait-for graph in the form that its reduction needs, and the unobserved vertices that could change the result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dstack.analysis.solve import reduction
from dstack.diagnosis import Vertex, Wait
from dstack.vertex_keys import Key

Waits = dict[Key, list[tuple[int, list[Key]]]]


def waits_of(
    vertices: Iterable[Vertex], *, proven_only: bool = False, with_timed: bool = False, is_cut_short: bool = False
) -> Waits:
    """The requirements of each wait: none for a wait with a timeout, impossible ones for a vertex that never completes.

    With ``proven_only``, no assumption counts, nor that a loop only polls. ``with_timed`` counts waits with timeouts.
    With ``is_cut_short``, a wait also ends by what may cut it short, or if one target of a wait that fails fast may go
    on. What goes on may do so; what is stuck neither fails nor cancels anything, so it matters for the residue only.
    """
    waits: Waits = {}
    for vertex in vertices:
        if vertex.never is not None:
            waits[vertex.key] = [(1, [])]
        elif vertex.wait is not None and (with_timed or not vertex.wait.is_timed):
            groups = vertex.wait.proven_groups if proven_only and vertex.wait.is_suspected else vertex.wait.groups
            found = [(group.needs, [target.vertex for target in group.targets]) for group in groups]
            waits[vertex.key] = _cut_short(vertex.wait, found) if is_cut_short else found
    return waits


def _cut_short(wait: Wait, requirements: list[tuple[int, list[Key]]]) -> list[tuple[int, list[Key]]]:
    """The requirements, each of which is also met by what may cut the wait short.

    But for the thread that blocks the event loop of a coroutine: until then, nothing is cancelled.
    """
    others = [target.vertex for target in wait.cut_short_by]
    if wait.fails_fast:
        others += [target for _, targets in requirements if wait.loop not in targets for target in targets]
    return [
        (needs, targets if wait.loop in targets else [*targets, *others * needs]) for needs, targets in requirements
    ]


def targets_of(vertex: Vertex) -> list[Key]:
    """All dependencies of a vertex, and what may cut its wait short."""
    return [target.vertex for target in (*vertex.wait.targets, *vertex.wait.cut_short_by)] if vertex.wait else []


def relevant_unobserved(vertices: Mapping[Key, Vertex]) -> set[Key]:
    """The unobserved vertices that waits depend on and that could make further waits permanent.

    For some vertices all possible dependencies are known (:attr:`Vertex.at_most`). If the residue stays the same even
    when each of these needs all of its possible dependencies, they are not relevant.
    """
    unobserved = {key for key, vertex in vertices.items() if vertex.unobserved}
    if not unobserved:
        return unobserved
    unobserved &= {target for vertex in vertices.values() for target in targets_of(vertex)}
    bounded = {key: vertices[key].at_most for key in unobserved if vertices[key].at_most is not None}
    waits = waits_of(vertices.values(), is_cut_short=True)
    at_worst = waits | {key: [(1, [target]) for target in targets or ()] for key, targets in bounded.items()}
    if bounded and reduction.residue(waits) == reduction.residue(at_worst):
        return unobserved - bounded.keys()
    return unobserved
