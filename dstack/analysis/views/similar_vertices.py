"""Which vertices of the wait-for graph are similar, so that they can be shown as one."""

from __future__ import annotations

from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming import names
from dstack.diagnosis import Vertex
from dstack.model import Frame


def similarity_key(index: SampleIndex, vertex: Vertex) -> object:
    """Equal for similar vertices, apart from their targets: by name, line and call."""
    wait = vertex.wait
    how = wait and (wait.kind, wait.what, wait.resources, wait.needed, wait.total, wait.timeout_s, wait.evidence)
    line = _line(index, vertex)
    return (vertex.kind, vertex.label, vertex.never, vertex.waker_of, vertex.is_confirmed, line, how)


def _line(index: SampleIndex, vertex: Vertex) -> Frame | None:
    execution = index.execution_of(vertex)
    return names.user_frame(index.snapshot.frames_of(execution)) if execution else None
