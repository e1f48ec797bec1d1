"""What every kind of finding is told with: who takes part, as steps of a story, alike ones as one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from dstack.analysis import names, sentences
from dstack.analysis.findings.situation import Situation
from dstack.analysis.lasting import of_any
from dstack.analysis.members import Member, member
from dstack.diagnosis import Finding, Since, Step, Vertex

SHOWN_NAMES = 3
SHOWN_REST = 5
MAX_COMPARED = 1000


class Teller:
    """Puts vertices into words; who takes part in several findings is put into words once."""

    def __init__(self, situation: Situation) -> None:
        self.situation = situation
        self.observed = situation.observed
        self.vertices = situation.vertices
        self._sentences: dict[str, Step] = {}

    def vertices_of(self, keys: Iterable[str]) -> list[Vertex]:
        """The vertices of these keys."""
        return [self.vertices[key] for key in keys]

    def member(self, vertex: Vertex) -> Member:
        """Who it is, and where."""
        return member(self.observed, vertex)

    def name(self, vertex: Vertex) -> str:
        """What it is called where others wait for it."""
        return sentences.name(self.observed, vertex)

    def spot(self, vertex: Vertex) -> str:
        """`` at train.py:12 on node 10.0.0.1``, as far as known."""
        who = self.member(vertex)
        line = f" at {who.file.rpartition('/')[2]}:{who.line}" if who.file else ""
        return line + (f" on node {who.node_ip}" if who.node_ip and vertex.kind == "execution" else "")

    def step(self, key: str) -> Step:
        """Who it is, where, what it does and for whom, and for how long now."""
        return _lasting(self._sentence(key), [self.vertices[key]], "")

    def _sentence(self, key: str) -> Step:
        if key not in self._sentences:
            self._sentences[key] = sentences.sentence(self.observed, self.vertices, self.vertices[key])
        return self._sentences[key]

    def alike(
        self, keys: Sequence[str], lead: str, step_of: Callable[[str], Step] | None = None, doing: str = ""
    ) -> Iterator[Step]:
        """The steps of these vertices, those in the same words as one, and no more than a few.

        ``doing`` is what they have done for so long, where the words do not end in that.
        """
        groups: dict[Step, list[Vertex]] = defaultdict(list)
        for key in keys[:MAX_COMPARED]:
            groups[(step_of or self._sentence)(key)].append(self.vertices[key])
        for step, vertices in list(groups.items())[:SHOWN_REST]:
            alike = f" ({len(vertices):,} alike)" if len(vertices) > 1 else ""
            told = msgspec.structs.replace(step, text=f"{lead}{step.text}{alike}")
            yield _lasting(told, vertices, doing)
        shown = sum(len(vertices) for vertices in list(groups.values())[:SHOWN_REST])
        yield from more(len(keys) - shown, "like these")

    def behind(self, finding: Finding) -> Iterator[Step]:
        """Who waits behind: executions, since they have lines to look at, and how many others."""
        executions = [key for key in finding.blocked_behind if self.vertices[key].kind == "execution"]
        yield from self.alike(executions, "Behind it, ")
        yield from more(len(finding.blocked_behind) - len(executions), "pending behind it")
        yield from self.alike(finding.polled_by, "Polling it, ")


def _lasting(step: Step, vertices: Sequence[Vertex], doing: str) -> Step:
    """The step with the time for which all of these have waited, if more is known of it than that dstack watched it."""
    since = of_any([vertex.since or Since() for vertex in vertices])
    if since.at_most_s is None:
        return step
    return msgspec.structs.replace(step, text=f"{step.text}, {doing}{names.lasting(since)} now")


def more(count: int, where: str) -> Iterator[Step]:
    """``3 more like these``, if there are any."""
    if count > 0:
        yield Step(text=f"{count:,} more {where}")


def waiting(finding: Finding, where: str) -> str:
    """``; 9 wait behind them, 2 directly``, if anybody does."""
    total, direct = finding.waiters_total, finding.waiters_direct
    if not total:
        return ""
    return f"; {names.waiting(total)} {where}" + (f", {direct:,} directly" if direct != total else "")
