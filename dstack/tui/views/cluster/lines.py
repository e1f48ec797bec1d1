"""What is in a cluster as lines of an outline, and all that is to be said of one of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from rich.text import Text

from dstack import words
from dstack.analysis.naming import names
from dstack.analysis.views.inventory import DOINGS, Deed, Doing, Inventory, Lacking, Occupant, Resident, alike
from dstack.model import Actor, Node
from dstack.report.paths import location, short_path
from dstack.report.safe_text import SafeText
from dstack.tui.source import Look
from dstack.tui.views.base import Place
from dstack.tui.widgets.outline_line import Line
from dstack.vertex_keys import Key

OPENED_NODES = 8
OPENED_PENDING = 20
PENDING = "pending"
GIB = 2**30
MARKS: dict[Doing, tuple[str, str]] = {
    "stuck": ("✖ stuck", "bold red"),
    "waiting": ("… waits", "yellow"),
    "running": ("▶ runs", "green"),
    "idle": ("○ idle", "dim"),
    "unreadable": ("? unreadable", "magenta"),
    "not read": ("? not read", "magenta"),
}
"""The meaning never depends on the colour alone."""


@dataclass(frozen=True)
class Lines:
    """The lines of one look's cluster."""

    look: Look
    inventory: Inventory

    def roots(self) -> list[Line]:
        """The nodes, then what is not there yet."""
        nodes = self.inventory.nodes
        lines = [self._node(node, is_open=number < OPENED_NODES) for number, node in enumerate(nodes)]
        lacking = self.inventory.lacking()
        if lacking:
            count = sum(one.count for one in lacking)
            text = (
                SafeText().append(f"Pending: {count:,}", "bold").append("  tasks, actors, placement groups and calls")
            )
            is_open = len(lacking) <= OPENED_PENDING
            lines.append(Line(PENDING, text, partial(self._pending, lacking), is_open=is_open, data="pending"))
        return lines

    def way_to(self, vertex: Key) -> list[str]:
        """The keys of the lines down to where a vertex stands; none where it stands nowhere."""
        known = self.look.diagnosis.vertices.get(vertex)
        if known is None:
            return []
        if known.worker_id is None:
            found = next((one for one in self.inventory.lacking() if vertex in one.alike), None)
            return [PENDING, f"pending/{found.vertex}"] if found else []
        worker = self.look.index.workers.get(known.worker_id)
        node = next((one for one in self.inventory.nodes if worker and one.node_id == worker.node_id), None)
        if node is None:
            return []
        for group in alike(self.inventory.occupants(node)):
            if any(one.worker.worker_id == known.worker_id for one in group):
                fold = [f"alike/{group[0].worker.worker_id}"] if len(group) > 1 else []
                return [node.node_id, *fold, known.worker_id]
        return []

    # Nodes

    def _node(self, node: Node, *, is_open: bool) -> Line:
        text = SafeText().append(names.node(node), "bold").append(" (head)" if node.is_head else "")
        text.append(f" {node.hostname}" if node.hostname else "", "dim")
        if not node.alive:
            text.append("  ✖ dead", "bold red")
        for amount in self.inventory.amounts(node)[:2] if node.alive else ():
            if amount.name in ("CPU", "GPU"):
                text.append(f"  {amount.words}")
        for doing, count in self.inventory.counts(node).items():
            mark, style = MARKS[doing]
            text.append("  ").append(f"{mark}: {count:,}", style)
        if partly := self.inventory.partly_seen(node):
            text.append(f"  ({partly:,} only partly read)", MARKS["not read"][1])
        return Line(node.node_id, text, partial(self._below, node), is_open=is_open and node.alive, data=node)

    def _below(self, node: Node) -> list[Line]:
        figures = SafeText(" · ".join(self.figures(node)) or "host not read", "dim")
        lines = [Line(f"host/{node.node_id}", figures, data=node)]
        amounts = " · ".join(amount.words for amount in self.inventory.amounts(node)) if node.alive else ""
        if amounts:
            lines.append(Line(f"amounts/{node.node_id}", SafeText(amounts), data=node))
        lines += [self._resident(one, node) for one in self.inventory.residents(node)]
        lines += [self._group(group) for group in alike(self.inventory.occupants(node))]
        dead = self.inventory.dead_actors(node)
        if dead:
            children = [self._dead(actor) for actor in dead]
            lines.append(Line(f"dead/{node.node_id}", SafeText(f"† {words.plural(len(dead), 'dead actor')}"), children))
        return lines

    def figures(self, node: Node) -> list[str]:
        """What the host shows of itself, as far as a probe reached it."""
        figures = []
        if node.cpu_count is not None:
            figures.append(f"host: {node.cpu_count} CPUs")
        if node.load_1m is not None:
            figures.append(f"load {node.load_1m:.1f}")
        if node.memory_total_bytes is not None and node.memory_available_bytes is not None:
            used = node.memory_total_bytes - node.memory_available_bytes
            figures.append(f"memory {used / GIB:.1f} of {node.memory_total_bytes / GIB:.1f} GiB used")
        return figures

    def _resident(self, resident: Resident, node: Node) -> Line:
        key = f"group/{resident.group.placement_group_id}/{node.node_id}"
        return Line(key, SafeText("▣ ").append(resident_in_words(resident)), data=resident)

    def _dead(self, actor: Actor) -> Line:
        why = actor.death_cause or "no cause given"
        return Line(f"dead/{actor.actor_id}", SafeText(names.actor(actor)).append(f"  {why}", "dim"), data=actor)

    # Workers

    def _group(self, group: Sequence[Occupant]) -> Line:
        if len(group) == 1:
            return self._occupant(group[0])
        first = group[0]
        ranks = f"{found.words}, " if (found := self.look.stacks.teams.slice(_ids(group))) else ""
        text = self._mark(first.doing).append(f"{len(group):,} × ", "bold").append(f"{ranks}first: ", "dim")
        text.append_text(self._said(first))
        children = partial(self._occupants, group)
        return Line(f"alike/{first.worker.worker_id}", text, children, data=first, also=self._also(first))

    def _occupants(self, group: Sequence[Occupant]) -> list[Line]:
        """One by one; what they do is told by the line above, for all of them."""
        return [self._occupant(one, is_told=True) for one in group]

    def _occupant(self, one: Occupant, *, is_told: bool = False) -> Line:
        text = self._mark(one.doing).append_text(self._named(one) if is_told else self._said(one))
        is_simple = sum(one.counts.values()) == 1
        children = () if is_simple else partial(self._deeds, one)
        return Line(one.worker.worker_id, text, children, data=one, also=self._also(one), terms=one.ranks.terms)

    def _said(self, one: Occupant) -> Text:
        """Who it is, and what it does, if that is one thing; else how many do what."""
        text = self._named(one)
        deeds = self.inventory.deeds(one.worker.worker_id) if sum(one.counts.values()) == 1 else ()
        if deeds:
            said = deeds[0].words if deeds[0].is_whole_process else deeds[0].text
            text.append(f"  {said}").append(_at(deeds[0]), "cyan")
        elif sum(one.counts.values()) > 1:
            counts = (f"{count:,} {doing}" for doing in DOINGS if (count := one.counts.get(doing)))
            text.append(f"  {words.listed(list(counts))}")
        text.append(f"  {self.queue(one)}" if one.queued else "", "bold")
        return text.append(f"  {one.trouble}" if one.trouble else "", "magenta")

    def _named(self, one: Occupant) -> Text:
        ranks = f"  {found}" if (found := one.ranks.in_words) else ""
        return SafeText().append(one.name, "bold").append(f"{ranks}  pid {one.worker.pid}", "dim")

    def queue(self, one: Occupant) -> str:
        """How many calls are queued, at least, where not everybody answered."""
        least = "" if self.inventory.is_queue_known else "at least "
        return f"{least}{words.plural(one.queued, 'queued call')}"

    def _deeds(self, one: Occupant) -> list[Line]:
        return [self._deed(deed) for deed in self.inventory.deeds(one.worker.worker_id)]

    def _deed(self, deed: Deed) -> Line:
        count = f"{deed.count:,} × " if deed.count > 1 else ""
        text = self._mark(deed.doing).append(count, "bold").append(deed.text).append(_at(deed), "cyan")
        return Line(f"deed/{deed.vertex}", text, data=deed)

    def _mark(self, doing: Doing) -> SafeText:
        mark, style = MARKS[doing]
        return SafeText().append(f"{mark:<8}", style).append(" ")

    def _also(self, one: Occupant) -> str:
        return f"{one.worker.worker_id} {one.worker.actor_id or ''} {one.worker.ip}"

    # What is not there yet

    def _pending(self, lacking: Sequence[Lacking]) -> list[Line]:
        return [self._lacking(one) for one in lacking]

    def _lacking(self, one: Lacking) -> Line:
        text = self._mark("stuck" if one.is_stuck else "waiting").append(f"{one.what}: ", "dim")
        text.append(f"{one.count:,} × " if one.count > 1 else "", "bold").append(one.text)
        return Line(f"pending/{one.vertex}", text, data=one)

    # All of it

    def told(self, data: object) -> Iterator[Text]:
        """All that is to be said of what a line is about."""
        if isinstance(data, Node):
            yield from self._told_node(data)
        elif isinstance(data, Occupant):
            yield from self._told_occupant(data)
        elif isinstance(data, Deed):
            yield from _told_deed(data)
        elif isinstance(data, Resident):
            yield SafeText(resident_in_words(data))
            yield SafeText(f"{names.bundles(data.group)}, {data.group.strategy}", "dim")
        elif isinstance(data, Lacking):
            yield SafeText().append(f"{data.count:,} × " if data.count > 1 else "", "dim").append(data.text)
        elif isinstance(data, Actor):
            yield SafeText(f"{names.actor(data)} is dead: {data.death_cause or 'no cause given'}")

    def _told_node(self, node: Node) -> Iterator[Text]:
        yield SafeText().append(f"{names.node(node)} {node.hostname}", "bold").append(f"  {node.node_id}", "dim")
        if not node.alive:
            yield SafeText(f"The node is dead: {node.death_cause or 'no cause given'}", "red")
        yield SafeText(" · ".join(self.figures(node)) or "Host not read: no probe reached it.")
        yield SafeText(" · ".join(amount.words for amount in self.inventory.amounts(node)))
        labels = [f"{key}={value}" for key, value in node.labels.items() if not key.startswith("ray.io/")]
        if labels:
            yield SafeText(f"Labels {', '.join(labels)}", "dim")

    def _told_occupant(self, one: Occupant) -> Iterator[Text]:
        process = self.look.index.process(one.worker.worker_id)
        text = SafeText().append(f"{one.name}", "bold")
        ranks = f"{found}, " if (found := one.ranks.in_words) else ""
        text.append(f"  {ranks}pid {one.worker.pid}, node {one.worker.ip}")
        if process is not None:
            if process.started_at:
                text.append(f", {process.rss_bytes / GIB:.2f} GiB resident, {process.cpu_s:.1f} s of CPU time")
            if process.access != "memory" and process.threads:
                text.append(f", read by {process.access} only", "yellow")
        yield text
        held = self.inventory.held_by(one.worker.worker_id)
        parts = [f"holds {held}" if held else "", self.queue(one) if one.queued else "", one.trouble or ""]
        if any(parts):
            yield SafeText("; ".join(part for part in parts if part))
        deeds = self.inventory.deeds(one.worker.worker_id)
        for deed in deeds[:1]:
            yield from _told_deed(deed)
        if len(deeds) > 1:
            yield SafeText(f"and {len(deeds) - 1:,} more: Enter unfolds them", "dim")
        if not deeds and one.doing == "idle":
            yield SafeText("It is idle.")

    def code(self, data: object) -> Place | None:
        """The line of code at which an execution is."""
        deed = self.deed(data)
        return (deed.file, deed.line) if deed and deed.file is not None and deed.line is not None else None

    def deed(self, data: object) -> Deed | None:
        """What a line is about, or the worst of what a worker does."""
        if isinstance(data, Occupant):
            return next(iter(self.inventory.deeds(data.worker.worker_id)), None)
        return data if isinstance(data, Deed) else None

    def vertex(self, data: object) -> Key | None:
        """The vertex that a line is about, if there is one."""
        deed = self.deed(data)
        return deed.vertex if deed else data.vertex if isinstance(data, Lacking) else None


def _ids(group: Sequence[Occupant]) -> list[str]:
    return [one.worker.worker_id for one in group]


def resident_in_words(resident: Resident) -> str:
    """``placement group trainers: bundles 0 and 1  CPU 2 of 2 used, 0 free``."""
    group, numbers = resident.group, [str(number) for number in resident.bundles]
    state = "" if group.state == "CREATED" else f" ({group.state})"
    bundles = f"{words.word(len(numbers), 'bundle')} {words.listed(numbers)} of {len(group.bundles)}"
    return f"{names.placement_group(group)}{state}: {bundles}  {' · '.join(one.words for one in resident.amounts)}"


def _told_deed(deed: Deed) -> Iterator[Text]:
    yield SafeText().append(f"{deed.count:,} × " if deed.count > 1 else "", "dim").append(deed.text)
    if deed.file is not None:
        source = f"  {deed.source}" if deed.source else ""
        yield SafeText().append(f"{short_path(deed.file)}:{deed.line}", "cyan").append(source)


def _at(deed: Deed) -> str:
    return f"  {location(deed.file, deed.line)}" if deed.file else ""
