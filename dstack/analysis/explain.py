"""Tells a finding in sentences a person can act on: who waits, where, for what, because of whom, and a way out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from dstack.analysis import names
from dstack.analysis.members import Member, member
from dstack.analysis.observed import Observed, is_any_key
from dstack.diagnosis import Finding, Step, Target, Vertex, Wait
from dstack.model import actor_of_task

SHOWN_CYCLE = 24
SHOWN_TARGETS = 3
SHOWN_BLOCKERS = 3
SHOWN_REST = 5
MAX_COMPARED = 1000


def told(observed: Observed, vertices: Mapping[str, Vertex], findings: Iterable[Finding]) -> Iterator[Finding]:
    """The findings with their words. Who takes part in several is put into words once."""
    steps: dict[str, Step] = {}
    for finding in findings:
        story = Story(observed, vertices, finding, steps)
        yield msgspec.structs.replace(
            finding, summary=story.summary(), advice=story.advice(), explanation=tuple(story.sentences())
        )


class Story:
    """The words for one finding; ``steps`` are those known already, by vertex."""

    def __init__(
        self, observed: Observed, vertices: Mapping[str, Vertex], finding: Finding, steps: dict[str, Step]
    ) -> None:
        self._observed = observed
        self._vertices = vertices
        self._finding = finding
        self._steps = steps

    def summary(self) -> str:
        """The finding in one sentence, without its full stop."""
        if self._finding.kind == "deadlock":
            return self._deadlock_summary()
        if self._finding.kind in ("infeasible", "orphaned"):
            return self._never_summary()
        return self._open_summary()

    def sentences(self) -> Iterator[Step]:
        """The steps of the story, in the order of waiting."""
        if self._finding.kind == "deadlock":
            cycle = self._finding.cycle
            yield from map(self._step, cycle[:SHOWN_CYCLE])
            yield from _more(len(cycle) - SHOWN_CYCLE, "round the same circle")
            yield from self._alike_steps(self._finding.members[len(cycle) :], "Also ")
        elif self._finding.kind in ("infeasible", "orphaned"):
            yield from self._alike_steps(self._finding.members, "", self._submission)
        else:
            yield from (self._blocker_step(i) for i in range(min(SHOWN_BLOCKERS, len(self._finding.final_blockers))))
            yield from _more(len(self._finding.final_blockers) - SHOWN_BLOCKERS, "at the end of a chain")
        yield from self._behind_steps()

    def advice(self) -> str:
        """One way out that fits the finding."""
        kinds = {wait.kind for key in self._finding.members if (wait := self._vertices[key].wait)}
        match self._finding.kind:
            case "deadlock":
                return self._deadlock_advice(kinds)
            case "infeasible":
                return "Ask for less, or add a node that has it; nothing in the cluster as it is can give it."
            case "orphaned":
                return "Start the producer again, or let its caller handle the error."
            case "starved":
                return "Wait for one of the holders, end or shrink it, or add resources."
            case "polling":
                return (
                    "Look at the line above: the waiting comes back to it again and again, and will go on when it ends."
                )
            case _:
                return "Look at the lines above: all of it goes on when they do."

    # Summaries

    def _deadlock_summary(self) -> str:
        cycle = [self._vertices[key] for key in self._finding.cycle]
        executions = [vertex for vertex in cycle if vertex.kind == "execution"]
        if not executions:
            return f"{names.listed([vertex.label for vertex in cycle[:SHOWN_TARGETS]])} wait for each other"
        if len(executions) == 1:
            first = executions[0].label
            wanted = next((vertex.label for vertex in cycle if vertex.kind != "execution"), "itself")
            return f"{first} waits for {wanted}, which cannot start before {first} ends"
        if len(executions) <= SHOWN_TARGETS:
            labels = [vertex.label for vertex in executions]
            alike = len(set(labels)) < len(labels)
            return f"{names.listed([self._name(v) for v in executions] if alike else labels)} wait for each other"
        actors = {member(self._observed, vertex).actor_id for vertex in executions}
        who = f"{len(executions)} executions" if None in actors else f"{len(actors)} actors"
        return f"{who} wait for each other in a ring"

    def _never_summary(self) -> str:
        members, behind = self._finding.members, len(self._finding.blocked_behind)
        first = self._vertices[members[0]]
        who = first.label if len(members) == 1 else f"{len(members)} × {first.label}"
        because = _reason(first)
        if self._finding.kind == "infeasible":
            because = f"{'it' if len(members) == 1 else 'each'} {because}"
        waiting = f"; {behind} wait{'s' * (behind == 1)} for {'it' if len(members) == 1 else 'them'}" if behind else ""
        return f"{who} can never run: {because}{waiting}"

    def _open_summary(self) -> str:
        blockers = self._finding.final_blockers
        waiters = sum(not is_any_key(key) for key in self._finding.members)
        who = "1 waits" if waiters == 1 else f"{waiters} wait"
        if not blockers:
            return f"{who} for each other's timeouts"
        first = self._vertices[blockers[0].vertex]
        more = f" and {len(blockers) - 1} more" if len(blockers) > 1 else ""
        resources = f"{names.listed(self._finding.resources)}: " if self._finding.resources else ""
        return f"{who}, in the end for {resources}{self._name(first)}{self._spot(first)}{more}"

    def _spot(self, vertex: Vertex) -> str:
        """`` at train.py:12 on node 10.0.0.1``, as far as known."""
        who = member(self._observed, vertex)
        line = f" at {who.file.rpartition('/')[2]}:{who.line}" if who.file else ""
        return line + (f" on node {who.node_ip}" if who.node_ip and vertex.kind == "execution" else "")

    # Steps

    def _step(self, key: str) -> Step:
        if key not in self._steps:
            self._steps[key] = self._find_step(key)
        return self._steps[key]

    def _find_step(self, key: str) -> Step:
        vertex = self._vertices[key]
        who = member(self._observed, vertex)
        if vertex.never is not None or vertex.wait is None:
            return _at(f"{_introduced(vertex, who)} {_reason(vertex)}", who)
        return _at(f"{_introduced(vertex, who)} {self._waits(vertex, vertex.wait)}", who)

    def _submission(self, key: str) -> Step:
        """Who asked for what can never be given."""
        vertex = self._vertices[key]
        task = self._observed.tasks.get(vertex.task_id or "")
        owner = self._observed.workers.get(task.owner_id) if task else None
        if owner is None:
            return Step(text=f"{vertex.label} {_reason(vertex)}")
        where = f"pid {owner.pid}, node {owner.ip}"
        return Step(text=f"{vertex.label} was submitted by {names.worker(self._observed, owner)} ({where})")

    def _waits(self, vertex: Vertex, wait: Wait) -> str:
        """The verb of the sentence: what this vertex does and for whom."""
        targets = self._targets(wait)
        match wait.kind:
            case "ray.get":
                return f"waits in ray.get for {targets}"
            case "ray.wait":
                return f"waits in ray.wait for {wait.needed} of {wait.total}: {targets}"
            case "thread.join":
                return f"waits in Thread.join for {targets}"
            case "actor slot":
                return f"is queued there until {targets} ends"
            case "order":
                return f"must follow {targets}, which its caller sent before and whose arguments are not ready"
            case "arguments":
                return f"waits for its argument, made by {targets}" + _inferred(wait)
            case "resources":
                return f"waits for {names.listed(wait.resources) or 'room'}, held by {targets}"
            case "actor creation":
                return "waits for its actor to be created"
            case "placement group":
                return f"waits for {targets}"
            case _:
                return f"waits for {targets}"

    def _targets(self, wait: Wait) -> str:
        targets: list[Target] = list(dict.fromkeys(t for group in wait.groups for t in group.targets))
        labels = list(dict.fromkeys(self._name(self._vertices[target.vertex]) for target in targets))
        word = " and " if wait.kind == "ray.get" else " or "
        if len(labels) > SHOWN_TARGETS:
            return f"{', '.join(labels[:SHOWN_TARGETS])} and {len(labels) - SHOWN_TARGETS} more"
        return names.listed(labels, word)

    def _name(self, vertex: Vertex) -> str:
        """A target by name, with its actor where another actor of the class could be meant."""
        if vertex.kind == "unknown":
            return f"the {vertex.label}"
        actor = names.actor_of(self._observed, vertex.task_id) if vertex.task_id else None
        return f"{vertex.label} of {names.actor(actor)}" if actor else vertex.label

    def _blocker_step(self, index: int) -> Step:
        blocker = self._finding.final_blockers[index]
        vertex = self._vertices[blocker.vertex]
        who = member(self._observed, vertex)
        total, direct = blocker.waiters_total, blocker.waiters_direct
        count = f"{total} wait{'s' * (total == 1)} on it" + (f", {direct} directly" if direct != total else "")
        if vertex.kind == "unknown":
            return _at(f"the {vertex.label}; {count}" + ("; it is now at" if who.file else ""), who)
        doing = "runs" if who.on_cpu else "runs, but not on a CPU just now: it sleeps, or is in a call outside Python"
        return _at(f"{_introduced(vertex, who)} {doing if vertex.kind == 'execution' else 'can go on'}; {count}", who)

    def _behind_steps(self) -> Iterator[Step]:
        """Who waits behind: executions, since they have lines to look at, and how many others."""
        executions = [k for k in self._finding.blocked_behind if self._vertices[k].kind == "execution"]
        yield from self._alike_steps(executions, "Behind it, ")
        yield from _more(len(self._finding.blocked_behind) - len(executions), "pending behind it")

    def _alike_steps(
        self, keys: Sequence[str], lead: str, step_of: Callable[[str], Step] | None = None
    ) -> Iterator[Step]:
        """The steps of these vertices, those in the same words as one, and no more than a few."""
        counts = Counter(map(step_of or self._step, keys[:MAX_COMPARED]))
        for step, count in list(counts.items())[:SHOWN_REST]:
            alike = f" ({count} alike)" if count > 1 else ""
            yield msgspec.structs.replace(step, text=f"{lead}{step.text}{alike}")
        shown = sum(list(counts.values())[:SHOWN_REST])
        yield from _more(len(keys) - shown, "like these")

    # Ways out

    def _deadlock_advice(self, kinds: set[str]) -> str:
        if "resources" in kinds:
            return (
                "Let the waiting tasks ask for less (num_cpus=0 for those that only wait), end them before they wait, "
                "or add resources: what they hold is what the others need."
            )
        queued = [v for key in self._finding.cycle if (v := self._vertices[key]).wait and v.kind == "task"]
        callers = [v for key in self._finding.cycle if (v := self._vertices[key]).kind == "execution"]
        if len(callers) == 1 and queued and _actor_of(queued[0]) == _actor_of(callers[0]):
            return (
                f"Call {queued[0].label} directly (self.method()) instead of through the actor's own handle, "
                "or make the actor able to run both: max_concurrency=2 or async methods."
            )
        if queued:
            labels = names.listed(sorted({vertex.label for vertex in queued}), " or ")
            return (
                f"Break the circle at one place: let {labels} run while its actor waits (async method, "
                "max_concurrency=2 or a concurrency group for it), or return the ObjectRef instead of getting it."
            )
        return "Break the circle at one place: pass the ObjectRef on instead of getting it inside."


def _introduced(vertex: Vertex, who: Member) -> str:
    return f"{vertex.label} ({who.place})" if who.place else vertex.label


def _reason(vertex: Vertex) -> str:
    return vertex.never or "cannot go on"


def _inferred(wait: Wait) -> str:
    return f" (inferred: {wait.inferred})" if wait.inferred else ""


def _more(count: int, where: str) -> Iterator[Step]:
    if count > 0:
        yield Step(text=f"{count} more {where}")


def _at(text: str, who: Member) -> Step:
    return Step(text=text, file=who.file, line=who.line, source=who.source)


def _actor_of(vertex: Vertex) -> str | None:
    return actor_of_task(vertex.task_id) if vertex.task_id else None
