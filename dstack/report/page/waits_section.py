"""The wait-for graph, drawn: waiters at the left, what they wait for at the right, and cycles as ellipses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dstack import words
from dstack.analysis.naming import names, sentences
from dstack.analysis.naming.descriptions import because_of, describe, in_words
from dstack.analysis.naming.vertex_details import VertexDetails, details_of
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.wait_graph_forms import Outcome, WaitBox, WaitBoxes, WaitLink
from dstack.analysis.views.wait_tree import as_drawn
from dstack.model.diagnosis import Diagnosis, Step, Vertex, Wait
from dstack.model.vertex_keys import Key
from dstack.report.finding import titled
from dstack.report.graph_svg import WIDEST_LINE, BoxStyle, Drawing, GraphBox, GraphLink, LinkStyle, shown_lines
from dstack.report.page.section import ReportData, Section, graph_body
from dstack.report.rich_text import place_of, shortened_left
from dstack.words import SHOWN, plural

KEY = "waits"
BOXES: Mapping[Outcome, tuple[str, BoxStyle, str]] = {
    "deadlock": ("✖ ", BoxStyle("bad", 2.5), "✖ deadlocked"),
    "never": ("✖ ", BoxStyle("bad", 1.2), "✖ never proceeds"),
    "behind": ("■ ", BoxStyle("warn"), "■ blocked behind these"),
    "blocker": ("◎ ", BoxStyle("info", 2.0), "◎ final blocker"),
    "waits": ("", BoxStyle("dim"), "waits"),
    "runs": ("▸ ", BoxStyle("good"), "▸ runs"),
    "helper": ("", BoxStyle("bare", is_dotted=True), "state of Ray, or unknown"),
}
"""The mark, the appearance and the name of the boxes of each outcome."""
MANY = 1_000
"""So many vertices of a box are compared."""
CERTAIN = "certain"
DASHES = {CERTAIN: "", "inferred or suspected": "9 5", "ends by a timeout": "2 4"}
LINKS = {
    "cycle": LinkStyle("bad", 3.2),
    "other wait in the deadlock": LinkStyle("bad", 1.2),
    "never proceeds": LinkStyle("warn"),
    "wait": LinkStyle("dim"),
}


@dataclass(frozen=True, slots=True)
class _Facts:
    """What is known of the first vertex of a box."""

    box: WaitBox
    vertex: Vertex
    details: VertexDetails


def section(data: ReportData) -> Section | None:
    """The graph; None if nothing waits."""
    found = drawing(data.analysed, data.stack_ids)
    if not found.boxes:
        return None
    return Section(KEY, "Wait-for graph", graph_body("waits.html", found), script="graph.js")


def drawing(analysed: AnalysedSnapshot, stacks: Mapping[Key, str] = {}) -> Drawing:
    """All waits of a snapshot; ``stacks`` are the ids of the elements that show them."""
    diagnosis = as_drawn(analysed.merged_index, analysed.diagnosis)
    found = WaitBoxes.of(analysed.merged_index, diagnosis)
    writer = _Writer(analysed, diagnosis, stacks)
    facts = [writer.facts(box) for box in found.boxes]
    links = [writer.link(link, facts) for link in found.links]
    outcomes, styles = {box.outcome for box in found.boxes}, {link.style for link in links}
    named = {_link_style(kind, sure): ", ".join((kind, sure) if sure != CERTAIN else (kind,))
             for kind in LINKS for sure in DASHES}  # fmt: skip
    return Drawing(
        KEY,
        writer.boxes(facts),
        links,
        [(text, style) for outcome, (_, style, text) in BOXES.items() if outcome in outcomes],
        [(text, style) for style, text in named.items() if style in styles],
        list(_notes(found)),
        is_of_waits=True,
    )


def _notes(found: WaitBoxes) -> Iterator[str]:
    if found.left_out:
        yield f"{plural(found.left_out, 'more waiter or dependency', 'more waiters and dependencies')} left out."
    if found.left_out_links:
        yield f"{plural(found.left_out_links, 'more arrow')} left out."


def _link_style(kind: str, sure: str) -> LinkStyle:
    return replace(LINKS[kind], dashes=DASHES[sure])


def _certainty(wait: Wait) -> str:
    if wait.is_timed:
        return "ends by a timeout"
    return "inferred or suspected" if wait.inferred or wait.is_suspected else CERTAIN


def _end_of(text: str) -> str:
    """The text, cut at its beginning if it is too long for a line of a box."""
    return text if len(text) <= WIDEST_LINE else f"…{text[1 - WIDEST_LINE :]}"


def _location(file: str, line: int | None) -> str:
    """The location, cut at its beginning if it is too long for a line of a box."""
    return _end_of(shortened_left(place_of(file, line), WIDEST_LINE))


class _Writer:
    """The texts of boxes and links."""

    def __init__(self, analysed: AnalysedSnapshot, drawn: Diagnosis, stacks: Mapping[Key, str]) -> None:
        self._analysed = analysed
        self._index = analysed.merged_index
        self._diagnosis = drawn
        self._stacks = stacks

    def facts(self, box: WaitBox) -> _Facts:
        vertex = self._diagnosis.vertices[box.first]
        return _Facts(box, vertex, details_of(self._index, vertex))

    def link(self, link: WaitLink, facts: Sequence[_Facts]) -> GraphLink:
        source, target = facts[link.source], facts[link.target]
        wait = source.vertex.wait
        assert wait is not None, "a link begins at a wait"
        is_stuck = source.box.outcome in ("deadlock", "never", "behind")
        kind = "never proceeds" if is_stuck else "wait"
        if link.is_deadlocked:
            kind = "cycle" if link.is_in_cycle else "other wait in the deadlock"
        tip = f"{self._title(source)} waits for {self._title(target)}\n{self._wait(source)}"
        return GraphLink(link.source, link.target, _link_style(kind, _certainty(wait)), tip)

    def boxes(self, facts: Sequence[_Facts]) -> list[GraphBox]:
        """The boxes; those that would read the same also have what distinguishes them."""
        texts = [(f"{BOXES[one.box.outcome][0]}{self._title(one)}", self._lines(one)) for one in facts]
        more = words.distinct([shown_lines(*text) for text in texts], list(map(self._distinguishing, facts)))
        return [self._box(*one) for one in zip(facts, texts, more, strict=True)]

    def _box(self, facts: _Facts, text: tuple[str, Sequence[str]], more: Sequence[str]) -> GraphBox:
        title, lines = text
        stack = next((self._stacks[key] for key in facts.box.vertices if key in self._stacks), None)
        tip = "\n".join(self._tip(facts, stack))
        return GraphBox(title, (*lines, *more), tip, BOXES[facts.box.outcome][1], stack)

    def _lines(self, facts: _Facts) -> tuple[str, ...]:
        """Its actor, its line of code and its wait."""
        details = facts.details
        actors = {
            details_of(self._index, self._diagnosis.vertices[key]).actor_and_rank[:1]
            for key in facts.box.vertices[:MANY]
        }
        has_actor = details.actor_id is not None and len(actors) == 1
        place = _location(details.file, details.line) if details.file is not None else ""
        return (
            *(details.actor_and_rank[:1] if has_actor else ()),
            place,
            self._brief_wait(facts),
            self._own(facts.box),
        )

    def _distinguishing(self, facts: _Facts) -> Sequence[str]:
        """The rest of its name if that is cut, what would end it, its process, and its ids."""
        name = sentences.name(self._index, facts.vertex)
        own = (_end_of(one) for one in facts.details.ids)
        return (_end_of(name), facts.details.process, *own)

    def _title(self, facts: _Facts) -> str:
        """``64 x Worker.step (ranks 0-63)``."""
        label, vertices = describe(facts.vertex), facts.box.vertices
        is_pending = facts.vertex.is_counted and facts.vertex.kind == "task" and facts.vertex.worker_id is None
        name = f"{label} (pending)" if is_pending else label
        if len(vertices) == 1:
            rank = facts.details.ranks.in_words
            return f"{name} ({rank})" if rank else name
        ranks = self._analysed.stacks.rank_sets.rank_set_of(map(self._diagnosis.vertices.__getitem__, vertices))
        return f"{len(vertices):,} × {name}{f' ({ranks.words})' if ranks else ''}"

    def _brief_wait(self, facts: _Facts) -> str:
        """``ray.get, any 1 of 3``; what it does if it does not wait."""
        wait = facts.vertex.wait
        if facts.vertex.never is not None:
            return in_words(facts.vertex.never)
        if wait is None:
            return sentences.activity(facts.vertex, facts.details) if facts.vertex.kind == "execution" else ""
        any_of = facts.box.any_of
        parts = (
            wait.call,
            words.listed(wait.resources),
            f"any {any_of[0]:,} of {any_of[1]:,}" if any_of else "",
            f"timeout {wait.timeout_s:g} s" if wait.timeout_s is not None else "",
        )
        return ", ".join(part for part in parts if part)

    def _own(self, box: WaitBox) -> str:
        if not box.own:
            return ""
        return "waits for itself" if len(box.vertices) == 1 else "some wait for others of these"

    def _tip(self, facts: _Facts, stack: str | None) -> Iterator[str]:
        """All that is known, in lines."""
        box, vertex = facts.box, facts.vertex
        if box.finding is not None:
            yield f"{BOXES[box.outcome][2]}: {titled(self._diagnosis.findings[box.finding])}"
        step = self._sentence(vertex)
        yield f"{len(box.vertices):,} alike, the first: {step.text}" if len(box.vertices) > 1 else step.text
        if step.file is not None:
            yield f"{place_of(step.file, step.line)}  {step.source or ''}".rstrip()
        if vertex.wait is not None:
            yield self._wait(facts)
            if because := because_of(vertex.wait):
                yield f"{'Assumed' if vertex.wait.assumed else 'Inferred'}: {because}"
        if own := self._own(box):
            yield own
        for key in box.vertices[1 : 1 + SHOWN]:
            yield f"Also: {details_of(self._index, self._diagnosis.vertices[key]).place}"
        rest = len(box.vertices) - 1 - SHOWN
        if rest > 0:
            yield f"and {rest:,} more"
        yield "Click: the stack" if stack else "No stack"

    def _wait(self, facts: _Facts) -> str:
        """``Wait: ray.get, any 1 of 3, for 3 min, exact, in both samples``."""
        wait = facts.vertex.wait
        assert wait is not None
        evidence = "suspected" if wait.is_suspected else wait.evidence
        samples = "in both samples" if facts.vertex.is_confirmed else "in one sample"
        parts = (self._brief_wait(facts), names.bounds(facts.vertex.since), evidence, samples)
        return f"Wait: {', '.join(part for part in parts if part)}"

    def _sentence(self, vertex: Vertex) -> Step:
        if vertex.waker_of is not None:
            return Step(text=f"dstack read every process, but found no thread that would end {vertex.waker_of}.")
        if vertex.kind == "unknown":
            return Step(text=f"The {describe(vertex)}.", vertex=vertex.key)
        return sentences.sentence(self._index, self._diagnosis.vertices, vertex)
