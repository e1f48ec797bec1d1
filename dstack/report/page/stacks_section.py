"""All stacks of the application, merged by class, with the outliers and what was not read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, count

from markupsafe import Markup

from dstack.analysis.naming.vertex_details import details_of
from dstack.analysis.stacks.app_threads import Execution, step_of
from dstack.analysis.stacks.stack_tree import StackBranch
from dstack.analysis.views.all_stacks import ChosenStacks, StackGroup
from dstack.model.diagnosis import Diagnosis
from dstack.model.profile import PathStep
from dstack.model.vertex_keys import Key
from dstack.observed.processes import Frame
from dstack.report.page.section import ReportData, Section, render
from dstack.report.rich_text import place_of
from dstack.report.stacks_text import WORDS, activities_in_words, frame_location, position_in_words, short
from dstack.words import SHOWN, plural, visible

MAX_ENDS = 800
"""Of so many different stacks the frames are shown: those of findings, then outliers, then the most frequent ones."""
MAX_FRAMES = 8_000
"""So many frames are shown in all, as long as each row has at least :data:`FEWEST_FRAMES`."""
MOST_FRAMES, FEWEST_FRAMES = 60, 4
MAX_PLACES = 6_000
MOST_PLACES = 60
SHOWN_AT_ONCE = 3
"""So many executions of one stack are named without a click."""
MAX_SEARCHED = 20_000
"""So many executions can be found by their names, ranks, nodes and pids; all others by their frames only."""
MAX_WHOLE = 40
MOST_WHOLE_FRAMES = 200
SHOWN_OUTLIERS = 20
SHOWN_ABSENT = 50
OPENED_LINES = 120
"""Groups are unfolded as long as they have not more lines than these together."""


@dataclass(frozen=True, slots=True)
class FrameLine:
    """A frame as one line; one without a name stands for ``left_out`` frames."""

    name: str = ""
    place: str = ""
    source: str = ""
    is_own: bool = False
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class StackEnd:
    """The executions that end in a row.

    ``places`` are the first of them, ``whole`` is the whole stack of one that is a member of a finding. ``searched``
    has one line for each: what it can be found by, a tab, and its exact terms, each between blanks.
    """

    id: str
    count: int
    activities: tuple[tuple[str, str], ...]
    ranks: str
    places: tuple[str, ...]
    outliers: tuple[str, ...]
    whole: tuple[FrameLine, ...]
    whole_count: int
    searched: Markup


@dataclass(frozen=True, slots=True)
class StackRow:
    """A branch of a tree: the frames that all its ``count`` executions share, below the row of ``depth`` less one."""

    depth: int
    count: int
    lines: tuple[FrameLine, ...]
    end: StackEnd | None


@dataclass(frozen=True, slots=True)
class ShownGroup:
    """The rows of a group. The stacks with the ids ``left_out`` have no rows; ``left_out_count`` executions have them.

    ``searched`` is what all of its executions can be found by.
    """

    group: StackGroup
    rows: tuple[StackRow, ...]
    left_out: tuple[str, ...]
    left_out_count: int
    searched: str

    @property
    def frames(self) -> int:
        """The number of lines of its frames."""
        return sum(len(row.lines) for row in self.rows)


@dataclass(frozen=True, slots=True)
class _Branch:
    """A branch with those below it as long as there is only one; ``parent`` is the index of the one above."""

    depth: int
    parent: int
    first: StackBranch
    last: StackBranch

    @property
    def path(self) -> tuple[PathStep, ...]:
        return self.last.path[max(0, self.first.depth - 1) :]

    @property
    def ending(self) -> Sequence[Execution]:
        return self.last.executions[: self.last.own]


class MergedStacks:
    """The groups of some stacks; ``ids`` are those of the elements by execution, ``members`` take part in findings."""

    def __init__(self, chosen: ChosenStacks, ids: Mapping[Key, str], members: Collection[Key]) -> None:
        self._chosen = chosen
        self._ids = ids
        self._members = set(members)
        self._counts = Counter(ids[one.key] for one in chosen.executions)
        self._searches = count()
        self._wholes = count()

    def groups(self) -> list[ShownGroup]:
        """All classes, those with most executions first."""
        groups = self._chosen.groups("class")
        branches = [self._kept(list(_branches(group.root))) for group in groups]
        most = _most_frames([branch for some in branches for branch in some])
        return [self._group(group, some, most) for group, some in zip(groups, branches, strict=True)]

    @cached_property
    def _shown_ids(self) -> set[str]:
        """The stacks that have a row."""
        first = {self._ids[key] for key in self._members if key in self._ids}
        second = {self._ids[key] for key in self._chosen.outliers}
        order = sorted(self._counts, key=lambda id_: (id_ not in first, id_ not in second, -self._counts[id_], id_))
        return set(order[:MAX_ENDS])

    @cached_property
    def _most_places(self) -> int:
        return max(SHOWN_AT_ONCE, min(MOST_PLACES, MAX_PLACES // max(1, len(self._shown_ids))))

    def _kept(self, branches: list[_Branch]) -> list[_Branch | None]:
        """The branches in which a stack with a row ends, or that are above one; None in the place of others."""
        kept = [bool(some.ending) and self._ids[some.ending[0].key] in self._shown_ids for some in branches]
        for index in reversed(range(len(branches))):
            if kept[index] and branches[index].parent >= 0:
                kept[branches[index].parent] = True
        return [branch if is_kept else None for branch, is_kept in zip(branches, kept, strict=True)]

    def _group(self, group: StackGroup, branches: Iterable[_Branch | None], most: int) -> ShownGroup:
        ids = dict.fromkeys(self._ids[one.key] for one in group.executions)
        left_out = tuple(id_ for id_ in ids if id_ not in self._shown_ids)
        jobs = {one.job for one in group.executions}
        return ShownGroup(
            group,
            tuple(self._row(branch, most, has_one_job=len(jobs) == 1) for branch in branches if branch),
            left_out,
            sum(self._counts[id_] for id_ in left_out),
            f"{group.name} {jobs.pop() if len(jobs) == 1 else ''}".casefold(),
        )

    def _row(self, branch: _Branch, most: int, *, has_one_job: bool) -> StackRow:
        shown = branch.ending and self._ids[branch.ending[0].key] in self._shown_ids
        end = self._end(branch.ending, has_one_job=has_one_job) if shown else None
        return StackRow(branch.depth, branch.first.count, tuple(self._lines(branch.path, most)), end)

    # Frames

    def _lines(self, path: Sequence[PathStep], most: int) -> Iterator[FrameLine]:
        """The frames, outermost first; of a longer path both ends."""
        head, tail = (path, ()) if len(path) <= most else (path[: most // 2], path[-(most - most // 2) :])
        yield from map(self._line, head)
        if tail:
            yield FrameLine(left_out=len(path) - most)
            yield from map(self._line, tail)

    def _line(self, step: PathStep) -> FrameLine:
        source = self._chosen.snapshot.source_line(step.file, step.line) if step.file else None
        place = frame_location(step) if step.file else ""
        return FrameLine(short(step.name), place, source or "", step.origin == "user")

    def _whole(self, ending: Sequence[Execution]) -> tuple[Frame, ...]:
        """All frames of the first member of a finding, outermost first; none if its path has all of them."""
        member = next((one.key for one in ending if one.key in self._members), None)
        frames = self._chosen.stacks.pages.frames_of(member) if member is not None else ()
        shown = sum(step.is_frame for step in ending[0].path)
        if len(frames) <= shown or next(self._wholes) >= MAX_WHOLE:
            return ()
        return tuple(reversed(frames))

    # Executions

    def _end(self, ending: Sequence[Execution], *, has_one_job: bool) -> StackEnd:
        outliers = self._chosen.outliers
        whole = self._whole(ending)
        steps = list(map(step_of, whole))
        return StackEnd(
            id=self._ids[ending[0].key],
            count=len(ending),
            activities=tuple(_activities(ending)),
            ranks=self._chosen.stacks.ranks_in_words(ending) if len(ending) > SHOWN_AT_ONCE else "",
            places=tuple(self._place(one) for one in ending[: self._most_places]),
            outliers=tuple(dict.fromkeys(outliers[one.key].words for one in ending if one.key in outliers)),
            whole=tuple(self._lines(steps, MOST_WHOLE_FRAMES)),
            whole_count=len(whole),
            searched=self._searched(ending, has_one_job=has_one_job),
        )

    def _place(self, one: Execution) -> str:
        """``Trainer.step, "left", rank 3, pid 7, 10.0.0.1``."""
        details = details_of(self._chosen.index, self._chosen.stacks.vertices[one.key])
        return ", ".join(filter(None, (one.name, details.short_place)))

    def _searched(self, ending: Sequence[Execution], *, has_one_job: bool) -> Markup:
        found = []
        for one in ending:
            if next(self._searches) >= MAX_SEARCHED:
                break
            job = "" if has_one_job else one.job
            own = f"{one.name} {one.ranks.in_words} {one.node} pid {self._pid(one)} {job}".casefold()
            terms = "".join(f" {term}" for term in sorted(one.ranks.terms))
            found.append(Markup("{}\t{} ").format(visible(own), visible(terms)))
        return Markup("\n").join(found)

    def _pid(self, one: Execution) -> int:
        return one.child_pid or self._chosen.index.workers[one.worker_id].pid


def _branches(root: StackBranch) -> Iterator[_Branch]:
    """The branches from the root down, each before those below it; the largest first."""
    ahead = [(root, 0, -1)] if root.own else [(child, 0, -1) for child in reversed(root.children)]
    index = 0
    while ahead:
        first, depth, parent = ahead.pop()
        last = first
        while len(last.children) == 1 and not last.own:
            last = last.children[0]
        yield _Branch(depth, parent, first, last)
        ahead += [(child, depth + 1, index) for child in reversed(last.children)]
        index += 1


def _most_frames(branches: Iterable[_Branch | None]) -> int:
    """The most frames of one row, so that all rows have about :data:`MAX_FRAMES` at most."""
    lengths = sorted(branch.last.depth - branch.first.depth + 1 for branch in branches if branch)
    left = MAX_FRAMES
    for at, length in enumerate(lengths):
        if length * (len(lengths) - at) > left:
            return max(FEWEST_FRAMES, min(MOST_FRAMES, left // (len(lengths) - at)))
        left -= length
    return MOST_FRAMES


def _activities(ending: Sequence[Execution]) -> Iterator[tuple[str, str]]:
    """The activity of these executions as a class of the page and in words; several with their numbers."""
    counts = Counter(one.activity for one in ending)
    for activity, number in counts.most_common():
        one, many = WORDS.get(activity, (activity, activity))
        yield activity.replace(" ", "-"), one if len(counts) == 1 else f"{number:,} {many}"


@dataclass(frozen=True, slots=True)
class GroupBlock:
    """A group with the places where its executions are, in words with their numbers, and how many are elsewhere."""

    shown: ShownGroup
    positions: tuple[tuple[int, str, str], ...]
    elsewhere: int
    is_open: bool


def section(data: ReportData) -> Section | None:
    """The stacks; None if there is none, and none is missing."""
    chosen = data.stacks
    if not chosen.executions and not chosen.absent:
        return None
    outliers = ((one.words, one.execution.kind, data.stack_ids[key]) for key, one in chosen.outliers.items())
    links = list(dict.fromkeys(outliers))
    groups = MergedStacks(chosen, data.stack_ids, _members(data.analysed.diagnosis)).groups()
    body = render(
        "stacks.html",
        title=_title(chosen),
        groups=list(_blocks(groups)),
        outliers=links[:SHOWN_OUTLIERS],
        more_outliers=len(links) - SHOWN_OUTLIERS,
        absent=chosen.absent[:SHOWN_ABSENT],
        more_absent=len(chosen.absent) - SHOWN_ABSENT,
        left_out=chosen.left_out,
        plural=plural,
    )
    return Section("stacks", "Stacks", body, script="stacks.js", count=len(chosen.executions))


def _title(chosen: ChosenStacks) -> str:
    """``14 stacks of 13 processes: 12 waiting, 2 running``."""
    processes = len({one.worker_id for one in chosen.executions})
    count = len(chosen.executions)
    text = f"{plural(count, 'stack')} of {plural(processes, 'process', 'processes')}"
    return f"{text}: {activities_in_words(chosen.activities)}" if count else text


def _members(diagnosis: Diagnosis) -> set[Key]:
    return {
        key
        for finding in diagnosis.findings
        for key in (*finding.members, *(one.vertex for one in finding.final_blockers))
    }


def _blocks(groups: Sequence[ShownGroup]) -> Iterator[GroupBlock]:
    for shown, lines in zip(groups, accumulate(group.frames for group in groups), strict=True):
        found = shown.group.positions
        first = tuple(
            (number, position_in_words(one), place_of(one.file, one.line) if one.file else "")
            for one, number in found[:SHOWN]
        )
        elsewhere = sum(count for _, count in found[SHOWN:])
        yield GroupBlock(shown, first, elsewhere, lines <= OPENED_LINES)
