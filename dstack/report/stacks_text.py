"""All stacks of a cluster as text: merged by class or rank with counts and outliers, or process by process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from time import localtime, strftime

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from dstack.analysis.index.shown_frames import fold_imports, own_frames
from dstack.analysis.naming.sentences import TORN_STACK
from dstack.analysis.naming.vertex_details import details_of
from dstack.analysis.stacks.app_threads import Activity, Execution, shown_step, step_of
from dstack.analysis.stacks.peers import Outlier
from dstack.analysis.stacks.stack_tree import StackBranch
from dstack.analysis.views.all_stacks import By, ChosenStacks, StackGroup, StackPosition
from dstack.analysis.views.stack_pages import ProcessThreads, ThreadSummary
from dstack.model.profile import PathStep
from dstack.model.snapshot import Node, Snapshot, Worker
from dstack.observed.processes import Origin
from dstack.report.rich_text import SafeText, location, place_of
from dstack.words import SHOWN, listed, plural, shortly

ACTIVITY_STYLES: Mapping[Activity, str] = {"waiting": "yellow", "running": "green", "off CPU": "dim"}
"""The words say the same as the colours."""
WORDS: Mapping[Activity, tuple[str, str]] = {
    "waiting": ("waits", "waiting"),
    "running": ("runs", "running"),
    "off CPU": ("off CPU", "off CPU"),
}
"""The word at the begin of a line, and the word after a number."""
ORIGINS: Mapping[Origin, str] = {"user": "your", "library": "library", "ray": "Ray", "stdlib": "Python"}
"""Before a noun: ``your code``, ``3 Ray frames``."""
SHOWN_PIDS = 10
WIDTH = 120
SHOWN_ABSENT = 10
SHOWN_GROUPS = 10


def short(function: str) -> str:
    """A function's name without the functions that enclose its definition."""
    return function.rpartition("<locals>.")[2]


def activity_word(activity: Activity, *, sleeps: bool = False) -> SafeText:
    """``waits``, ``runs``, ``sleeps`` or ``off CPU``, for the begin of a line."""
    word = "sleeps" if sleeps and activity == "off CPU" else WORDS[activity][0]
    return SafeText().append(f"{word}  ", ACTIVITY_STYLES[activity])


def frame_location(frame: PathStep) -> str:
    """``train.py:12``."""
    return place_of(frame.file, frame.line)


def activities_in_words(counts: Mapping[Activity, int]) -> str:
    """``10 waiting, 1 running``."""
    return ", ".join(f"{count:,} {word}" for activity, (_, word) in WORDS.items() if (count := counts.get(activity, 0)))


def outliers_in_words(outliers: Sequence[Outlier]) -> str:
    """``1 outlier``, and how it differs from similar executions if ranks name it."""
    named = list(dict.fromkeys(outlier.words for outlier in outliers if outlier.rank_set))
    more = f"; {len(named) - SHOWN:,} more" if len(named) > SHOWN else ""
    differences = f": {'; '.join(named[:SHOWN])}{more}" if named else ""
    return f"{plural(len(outliers), 'outlier')}{differences}"


def frame_line(snapshot: Snapshot, step: PathStep, doing: Text | None = None) -> SafeText:
    """``Trainer.step  app/train.py:12  loss.backward()``, with what is done there before the source."""
    text = SafeText().append(short(step.name), "bold" if step.origin == "user" else "")
    if step.file:
        text.append(f"  {location(step.file, step.line)}", "cyan")
    if doing:
        text.append_text(doing)
    source = snapshot.source_line(step.file, step.line) if step.file else None
    return text.append(f"  {source}" if source else "", "dim")


def process_trees(chosen: ChosenStacks) -> Iterator[Tree]:
    """One tree for each node: its processes with stacks, then the number of others by the reason."""
    for node, workers in chosen.nodes:
        yield _ProcessTree(chosen).tree(node, workers)


class _ProcessTree:
    def __init__(self, chosen: ChosenStacks) -> None:
        self._chosen = chosen
        self._stacks = chosen.stacks
        self._paths = {one.key: one.path for one in chosen.executions}

    def tree(self, node: Node, workers: Sequence[Worker]) -> Tree:
        """The tree of a node."""
        title = SafeText(self._stacks.node_names[node.node_id], "bold").append(
            f"  {plural(len(workers), 'process', 'processes')}{', head' * node.is_head}", "dim"
        )
        tree = Tree(title, guide_style="dim")
        without: dict[str, list[Worker]] = {}
        for worker in workers:
            process = self._stacks.process_threads(worker)
            if process.threads or process.children or (self._shows_others(process) and process.others):
                self._add(tree, process)
            else:
                without.setdefault(process.trouble, []).append(worker)
        for trouble, idle in without.items():
            pids = shortly([f"{worker.pid}" for worker in idle], shown=SHOWN_PIDS)
            others = plural(len(idle), "other process", "other processes")
            each = "it" if len(idle) == 1 else "each"
            tree.add(SafeText(f"{others} (pid {pids}): {each} {trouble}", "dim"))
        return tree

    def _add(self, tree: Tree, process: ProcessThreads) -> None:
        ranks = self._stacks.ranks_of(process.worker)
        place = ", ".join(filter(None, (ranks, f"pid {process.worker.pid}")))
        branch = tree.add(SafeText(process.name, "bold").append(f"  {place}", "dim"))
        others = process.others if self._shows_others(process) else ()
        for thread in (*process.threads, *others):
            branch.add(self._thread(thread))
        if process.others and not others:
            branch.add(SafeText(f"{plural(len(process.others), 'thread')} of Ray and its libraries", "dim"))
        for child in process.children:
            below = branch.add(SafeText(child.name, "bold").append(f"  pid {child.process.pid}", "dim"))
            for thread in child.threads:
                below.add(self._thread(thread))
            if not child.threads:
                below.add(SafeText("not read", "dim"))

    def _shows_others(self, process: ProcessThreads) -> bool:
        """Whether the threads of Ray and its libraries are listed: also of a chosen process that has no others."""
        return self._chosen.whole or (self._chosen.only is not None and not process.threads)

    def _thread(self, thread: ThreadSummary) -> Text:
        """What the thread does, and its frames below, outermost first."""
        text = activity_word(thread.activity, sleeps=thread.sleeps).append(thread.name, "bold")
        text.append(f"  {thread.words}")
        text.append(f"  {TORN_STACK}" if thread.is_torn else "", "yellow")
        lines = [frame_line(self._chosen.snapshot, step) for step in self._path(thread)]
        return Text("\n").join([text, *(SafeText("   ").append_text(line) for line in lines)])

    def _path(self, thread: ThreadSummary) -> Sequence[PathStep]:
        """The frames of an execution, or of a thread that is none; its own frames unless stacks are whole."""
        if thread.key in self._paths:
            return self._paths[thread.key]
        frames = self._stacks.pages.frames_of(thread.key)
        if self._chosen.whole:
            return list(map(step_of, reversed(frames)))
        shown = list(fold_imports(frames))
        return list(map(shown_step, reversed(own_frames(shown) or shown)))


def print_all_stacks(console: Console, chosen: ChosenStacks, by: By) -> None:
    """Prints a line about all stacks, the stacks, and what was left out or not read."""
    console.width = console.width if console.is_terminal else WIDTH
    _print_line(console, _title(chosen))
    trees = process_trees(chosen) if by == "process" else map(_Merged(chosen).tree, chosen.groups(by))
    for tree in trees:
        console.print()
        console.print(tree, no_wrap=True, overflow="ellipsis", crop=True)
    console.print()
    for line in _foot(chosen):
        _print_line(console, line)


def _print_line(console: Console, line: Text) -> None:
    console.print(line, no_wrap=True, overflow="ellipsis")


def _title(chosen: ChosenStacks) -> SafeText:
    """``14 stacks of 13 processes: 12 waiting, 2 running; 1 outlier: rank 3 is in other code than ranks 0-2``."""
    processes = len({one.worker_id for one in chosen.executions})
    count = len(chosen.executions)
    if chosen.only and not count:
        return SafeText(f"{plural(len(chosen.only), 'process', 'processes')} without code of the application", "bold")
    text = SafeText(f"{plural(count, 'stack')} of {plural(processes, 'process', 'processes')}", "bold")
    text.append(f": {activities_in_words(chosen.activities)}" if count else "")
    if chosen.outliers:
        text.append("; ").append(outliers_in_words(list(chosen.outliers.values())), "bold yellow")
    return text


def _foot(chosen: ChosenStacks) -> Iterator[SafeText]:
    for one in chosen.absent[:SHOWN_ABSENT]:
        yield SafeText(f"Not read: {one.name} {one.detail}", "yellow")
    if (more := len(chosen.absent) - SHOWN_ABSENT) > 0:
        yield SafeText(f"Not read: {plural(more, 'more process', 'more processes')}", "yellow")
    if chosen.left_out and chosen.only is None:
        hint = "" if chosen.whole else "; --whole prints whole stacks"
        yield SafeText(f"Left out: {plural(chosen.left_out, 'thread')} of Ray and its libraries{hint}", "dim")
    snapshot = chosen.snapshot
    taken = strftime("%Y-%m-%d %H:%M:%S", localtime(snapshot.taken_at))
    of_job = f", job {chosen.job_id} only" if chosen.job_id else ""
    yield SafeText(f"Ray {snapshot.ray_version} at {snapshot.address}, {taken}{of_job}", "dim")


class _Merged:
    """The merged stacks of groups as trees."""

    def __init__(self, chosen: ChosenStacks) -> None:
        self._chosen = chosen
        self._snapshot = chosen.snapshot

    def tree(self, group: StackGroup) -> Tree:
        """A line with the number of stacks and where they are, and the merged stacks below."""
        tree = Tree(group_title(group), guide_style="dim")
        for branch in group.root.children:
            self._add(tree, branch, group.root)
        return tree

    def _add(self, tree: Tree, branch: StackBranch, group: StackBranch) -> None:
        """A branch: the frames that all of its executions share, one per line."""
        chain = [branch]
        while len(chain[-1].children) == 1 and not chain[-1].own:
            chain.append(chain[-1].children[0])
        last = chain[-1]
        ending = last.executions[: last.own]
        doing = self._doing(ending, is_part=branch.count < group.count)
        places = [one.place for one in chain if one.place]
        lines: list[Text] = [frame_line(self._snapshot, place) for place in places[:-1]]
        lines.append(frame_line(self._snapshot, places[-1], doing))
        lines += self._outlier_lines(ending)
        node = tree.add(_indented(lines, f"{branch.count:,} × "))
        for child in last.children:
            self._add(node, child, group)

    def _doing(self, ending: Sequence[Execution], *, is_part: bool) -> Text | None:
        """What the executions that end here do, and which ones they are."""
        if not ending:
            return None
        activities = list(dict.fromkeys(one.activity for one in ending))
        words = listed([WORDS[one][0] for one in activities if one in WORDS])
        text = SafeText(f"  {words}", ACTIVITY_STYLES.get(activities[0], ""))
        return text.append(f"  {self._which(ending)}" if is_part or len(ending) <= SHOWN else "", "magenta")

    def _outlier_lines(self, ending: Sequence[Execution]) -> list[Text]:
        """How the outliers that end here differ from similar executions."""
        found = [self._chosen.outliers[one.key] for one in ending if one.key in self._chosen.outliers]
        return [SafeText(f"! {words}", "bold yellow") for words in dict.fromkeys(one.words for one in found)]

    def _which(self, executions: Sequence[Execution]) -> str:
        """``ranks 0-2``, or the places of the first few."""
        if ranks := self._chosen.stacks.ranks_in_words(executions):
            return ranks
        vertices = self._chosen.stacks.vertices
        places = [details_of(self._chosen.index, vertices[one.key]).short_place for one in executions[:SHOWN]]
        more = len(executions) - len(places)
        return "; ".join(dict.fromkeys(filter(None, places))) + (f" and {more:,} more" if more else "")


def _indented(lines: Sequence[Text], lead: str) -> Text:
    """The lines as one text; the first begins with ``lead``, the others with blanks in its place."""
    leads = (lead, *(" " * len(lead) for _ in lines[1:]))
    return Text("\n").join(SafeText(one, "bold").append_text(line) for one, line in zip(leads, lines, strict=True))


def group_titles(chosen: ChosenStacks) -> list[str]:
    """The largest groups by class, each as a line: how many executions it has, and where they are."""
    groups = chosen.groups("class")
    more = [f"and {plural(len(groups) - SHOWN_GROUPS, 'more class', 'more classes')}"] if groups[SHOWN_GROUPS:] else []
    return [*(group_title(group).plain for group in groups[:SHOWN_GROUPS]), *more]


def group_title(group: StackGroup) -> Text:
    """``3 x actor Trainer  in ray.get at train.py:33``."""
    text = SafeText().append(f"{len(group.executions):,} × {group.name}", "bold").append("  ")
    return text.append_text(positions_in_words(group.positions))


def position_in_words(position: StackPosition) -> str:
    """``in ray.get``, ``imports fastapi``."""
    return position.name if position.is_import else f"in {short(position.name)}"


def positions_in_words(positions: Sequence[tuple[StackPosition, int]]) -> SafeText:
    """``in ray.get at train.py:33``; of several positions each with its number."""
    text = SafeText()
    for at, (position, count) in enumerate(positions[:SHOWN]):
        text.append(", " if at else "").append(f"{count:,} " if len(positions) > 1 else "")
        text.append(position_in_words(position))
        if position.file:
            text.append(" at ").append(f"{position.file.rpartition('/')[2]}:{position.line}", "cyan")
    rest = sum(count for _, count in positions[SHOWN:])
    return text.append(f", {rest:,} elsewhere" if rest else "")
