"""The wait-for graph in the form that its reduction needs, and the unobserved vertices that could change the result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dstack.analysis.solve import reduction
from dstack.model.diagnosis import Vertex
from dstack.model.vertex_keys import AnyKey, Key

Waits = dict[Key, list[tuple[int, list[Key]]]]


def waits_of(
    vertices: Iterable[Vertex], *, proven_only: bool = False, with_timed: bool = False, is_cut_short: bool = False
) -> Waits:
    """The requirements of each wait: none for a wait with a timeout, impossible ones for a vertex that never completes.

    With ``proven_only``, no assumption counts, nor that a loop only polls. ``with_timed`` counts waits with timeouts.
    With ``is_cut_short``, a wait also ends by what may cut it short, or if one target fails that may. What goes on may
    do so; what is stuck neither fails nor cancels anything, so it matters for :func:`stuck_in` only. Until a thread
    frees the event loop that it blocks, nothing there is cancelled.
    """
    waits: Waits = {}
    for vertex in vertices:
        if vertex.never is not None:
            waits[vertex.key] = [(1, [])]
        elif vertex.wait is not None and (with_timed or not vertex.wait.is_timed):
            groups = vertex.wait.proven_groups if proven_only and vertex.wait.is_suspected else vertex.wait.groups
            found = [(group.needs, [target.vertex for target in group.targets]) for group in groups]
            others = [target.vertex for target in (*vertex.wait.failing, *vertex.wait.cut_short_by)]
            if is_cut_short and others:
                whole, by_loop = _whole(vertex), [one for one in found if vertex.wait.loop in one[1]]
                waits[whole] = [one for one in found if one not in by_loop]
                waits[vertex.key] = [(1, [whole, *others]), *by_loop]
            else:
                waits[vertex.key] = found
    return waits


def _whole(vertex: Vertex) -> AnyKey:
    """What ends a wait that is not cut short: all of its own dependencies."""
    return AnyKey("whole", (vertex.key,))


def stuck_in(waits: Waits) -> set[Key]:
    """The vertices that can never proceed."""
    found = reduction.residue(waits)
    return {key for key in found if not isinstance(key, AnyKey) or key.what != "whole"}


def targets_of(vertex: Vertex) -> list[Key]:
    """All dependencies of a vertex, and what may cut its wait short."""
    return [target.vertex for target in vertex.wait.all_targets] if vertex.wait else []


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
    if bounded and stuck_in(waits) == stuck_in(at_worst):
        return unobserved - bounded.keys()
    return unobserved
