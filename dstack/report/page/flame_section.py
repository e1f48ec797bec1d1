"""Flame graphs of the stacks, of the time of tasks, and of recordings.

Groups, such as node and class, are the first levels. The page has the rectangles, without the narrowest ones, as short
columns of numbers, which its script draws.
"""

from __future__ import annotations

import colorsys
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count

from markupsafe import Markup

from dstack.analysis.history.task_time import TaskTime
from dstack.analysis.stacks.profiles import profile_stacks, stacks_in_time
from dstack.analysis.stacks.stack_tree import marks_of
from dstack.analysis.stacks.weighted_stacks import (
    Unit,
    WeightedBranch,
    WeightedStacks,
    WeightedTree,
    recorded_stacks,
    without_line,
)
from dstack.analysis.views.all_stacks import ChosenStacks
from dstack.model.profile import PathStep, Profile, State
from dstack.model.recording import Recording
from dstack.report.page.section import ReportData, Section, data_element, render
from dstack.report.profile_text import STATE_WORDS, profile_shortfalls, profile_summary
from dstack.report.summaries import recording_summary, shortfalls
from dstack.words import duration, grouped, plural, visible

MAX_BOXES = 20_000
"""The most rectangles of a flame graph on a page of its own."""
HUES = {"user": 30, "library": 130, "ray": 205, "stdlib": 265}
"""The hue of a frame by the origin of its code."""
ORIGINS = {"user": "application", "library": "library", "ray": "Ray", "stdlib": "standard library"}
FRAME_SATURATION, PALE_SATURATION = 0.75, 0.3
"""Frames are pale where steps with a state stand out."""
STATE_COLOURS: Mapping[State, str] = {
    "runs": "#57b868",
    "sleeps": "#6fa8f5",
    "waits": "#8fd6d6",
    "queue": "#f5c63d",
    "resources": "#e58bd2",
    "starts": "#b79cf2",
    "outside": "#f2867a",
}
MOST_RECORDINGS = 6
MOST_BOXES = 10_000
"""The most rectangles of one flame graph, as there are several."""
PROFILE_WIDTH = (
    "The width is wall-clock time of what was followed: from each driver down through its waits, to what runs, queues "
    "or is missing at their ends. A wait for several things shares its time among those that are missing."
)
OWN_TIME = (
    "The width is the time in which tasks ran, also while they slept or waited. A caller is as wide as the calls below "
    "it, and calls that ran in parallel stand side by side."
)


@dataclass(slots=True)
class Box:
    """One rectangle: a group, or a call below the same outer calls; from ``left``, ``weight`` wide."""

    step: PathStep
    depth: int
    parent: int
    left: int
    weight: int = 0


@dataclass(slots=True)
class Boxes:
    """The rectangles of some stacks, the outer ones before the inner ones, and whether narrow ones are left out."""

    total: int = 0
    boxes: list[Box] = field(default_factory=list)
    is_cut: bool = False


def boxes_of(tree: WeightedTree, most: int = MAX_BOXES) -> Boxes:
    """The rectangles of a tree, in its order; the widest so many, as none is wider than its outer one."""
    found: list[Box] = []
    ahead: list[tuple[int, int, Box, WeightedBranch]] = []
    pushed = count()
    _push_inner(tree, tree.root, -1, 0, ahead, pushed)
    while ahead and len(found) < most:
        *_, box, branch = heappop(ahead)
        found.append(box)
        _push_inner(tree, branch, len(found) - 1, box.left, ahead, pushed)
    return Boxes(tree.weights.of(tree.root), _from_left(found), bool(ahead))


def _push_inner(
    tree: WeightedTree,
    branch: WeightedBranch,
    index: int,
    left: int,
    ahead: list[tuple[int, int, Box, WeightedBranch]],
    pushed: Iterator[int],
) -> None:
    """Push the rectangles in the one with this index, side by side; the widest of all is taken first."""
    for inner in tree.ordered(branch.children):
        weight = tree.weights.of(inner)
        assert inner.place is not None
        heappush(ahead, (-weight, next(pushed), Box(inner.place, inner.depth - 1, index, left, weight), inner))
        left += weight


def _from_left(boxes: Sequence[Box]) -> list[Box]:
    """The same rectangles from left to right, each before those in it."""
    order = sorted(range(len(boxes)), key=lambda index: (boxes[index].left, boxes[index].depth))
    place = {index: at for at, index in enumerate(order)}
    for box in boxes:
        box.parent = place.get(box.parent, -1)
    return [boxes[index] for index in order]


@dataclass(frozen=True, slots=True)
class Flame:
    """Stacks that are one flame graph, perhaps also in the order of time, and sentences below it."""

    title: str
    stacks: WeightedStacks
    notes: tuple[str, ...] = ()
    in_time: WeightedStacks | None = None


@dataclass(frozen=True, slots=True)
class Panel:
    """A flame graph in the page; its chart is drawn in the element with the id ``chart``."""

    title: str
    chart: str
    orders: Sequence[Boxes]
    unit: Unit
    notes: tuple[str, ...]

    @property
    def data(self) -> Markup:
        """The rectangles for the script."""
        return data_element(_compact(self.orders, self.unit, has_states=self.has_states), "boxes")

    @property
    def has_states(self) -> bool:
        """Whether any step is a state, as in profiles."""
        return any(box.step.state for box in self.orders[0].boxes)

    @property
    def legend(self) -> list[tuple[str, str]]:
        """The colours with what they mean, of what occurs."""
        steps = {box.step for box in self.orders[0].boxes}
        states = {step.state for step in steps}
        origins = {step.origin for step in steps if step.is_frame}
        frames = (PathStep("", "-", function="-", origin=origin) for origin in ORIGINS if origin in origins)
        return [
            *((STATE_COLOURS[state], STATE_WORDS[state]) for state in STATE_COLOURS if state in states),
            *((colour_of(step, has_states=self.has_states), ORIGINS[step.origin]) for step in frames),
            (colour_of(PathStep("")), _group(has_states=self.has_states)),
        ]


def section_of(key: str, title: str, flames: Sequence[Flame], most: int = MAX_BOXES) -> Section:
    """Flame graphs of which the first is shown, and a choice if there are several; ``key`` is unique in the page.

    Each has at most so many rectangles.
    """
    panels = [_panel(f"{key}-chart-{number}", flame, most) for number, flame in enumerate(flames)]
    body = render("flame.html", key=key, panels=panels)
    return Section(key, title, body, script="flame.js", library="vendor/d3-flame-graph.min.js")


def _panel(chart: str, flame: Flame, most: int) -> Panel:
    orders = [boxes_of(WeightedTree(flame.stacks), most)]
    if flame.in_time is not None:
        orders.append(boxes_of(WeightedTree(flame.in_time, in_order=True), most))
    notes = (f"Only the widest {most:,} boxes are drawn.",) if any(one.is_cut for one in orders) else ()
    return Panel(flame.title, chart, orders, flame.stacks.unit, (*flame.notes, *notes))


def _compact(orders: Iterable[Boxes], unit: Unit, *, has_states: bool) -> dict[str, object]:
    """Of each order, columns with one entry for each rectangle; columns with one for each different step and mark."""
    steps: dict[tuple[PathStep, str], int] = {}
    boxes = [_box_columns(one, steps) for one in orders]
    functions: dict[tuple[str, ...], int] = {}
    return {
        "unit": unit,
        "orders": boxes,
        "function": [functions.setdefault(without_line(step), len(functions)) for step, _ in steps],
        "name": [(visible(step.name) or "(no name)") + visible(mark) for step, mark in steps],
        "place": [_place(step, has_states=has_states) for step, _ in steps],
        "colour": [colour_of(step, has_states=has_states) for step, _ in steps],
    }


def _box_columns(boxes: Boxes, steps: dict[tuple[PathStep, str], int]) -> dict[str, object]:
    """The columns of rectangles; their steps and marks are numbered in ``steps``."""
    siblings = grouped((box.parent, box.step) for box in boxes.boxes)
    marks = {parent: marks_of(below) for parent, below in siblings.items()}
    keys = ((box.step, marks[box.parent].get(box.step, "")) for box in boxes.boxes)
    return {
        "total": boxes.total,
        "width": [box.weight for box in boxes.boxes],
        "parent": [box.parent for box in boxes.boxes],
        "step": [steps.setdefault(key, len(steps)) for key in keys],
    }


def _place(step: PathStep, *, has_states: bool) -> str:
    """``train.py:12 (application)``; the state in words, or ``group`` for a group."""
    if not step.is_frame:
        return STATE_WORDS[step.state] if step.state else _group(has_states=has_states)
    where = f"{step.file}:{step.line}" if step.line else step.file
    return f"{visible(where)} ({ORIGINS[step.origin]})"


def _group(*, has_states: bool) -> str:
    """What a step is that is neither a frame nor a state."""
    return "driver, task or actor" if has_states else "group"


def colour_of(step: PathStep, *, has_states: bool = False) -> str:
    """The colour of a rectangle, on which black text is readable: of its state, or a hue by origin, shaded by name."""
    if step.state:
        return STATE_COLOURS[step.state]
    shade = zlib.crc32(step.name.encode(errors="replace")) % 1000 / 1000
    if not step.is_frame:
        red, green, blue = colorsys.hls_to_rgb(0.0, 0.72 + 0.1 * shade, 0.0)
    else:
        hue = (HUES[step.origin] + 16 * shade - 8) / 360
        saturation = PALE_SATURATION if has_states else FRAME_SATURATION
        red, green, blue = colorsys.hls_to_rgb(hue, 0.68 + 0.12 * shade + 0.06 * has_states, saturation)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"


def section(data: ReportData) -> Section | None:
    """The flame graphs that have any width; None if none has."""
    flames = [flame for flame in _flames(data) if flame.stacks.stacks]
    return section_of("flame", "Flame graphs", flames, MOST_BOXES) if flames else None


def _flames(data: ReportData) -> Iterator[Flame]:
    """Profiles and recordings, the newest first, then what the snapshot has."""
    left_out = len(data.recordings) - MOST_RECORDINGS
    notes = (f"{plural(left_out, 'more recording')} left out.",) if left_out > 0 else ()
    profiles_last = sorted(data.recordings, key=lambda named: isinstance(named[1], Profile))
    for name, recording in profiles_last[::-1][:MOST_RECORDINGS]:
        flame = profile_flame(recording, name) if isinstance(recording, Profile) else _recording(name, recording)
        yield replace(flame, notes=(*flame.notes, *notes))
    yield _stacks(data.stacks)
    if data.analysed.task_time is not None:
        yield _task_time(data, data.analysed.task_time)


def _stacks(stacks: ChosenStacks) -> Flame:
    absent = len(stacks.absent)
    notes = (f"{plural(absent, 'process or call', 'processes or calls')} without a stack.",) if absent else ()
    title = f"Stacks ({plural(len(stacks.executions), 'thread or coroutine', 'threads and coroutines')})"
    return Flame(title, stacks.weighted("class"), notes)


def _task_time(data: ReportData, time: TaskTime) -> Flame:
    history = data.analysed.snapshot.history
    notes = [OWN_TIME]
    if history and (missing := history.left_out + history.dropped):
        notes.append(f"{plural(missing, 'older attempt')} not in the history.")
    if time.without_times:
        notes.append(f"{plural(time.without_times, 'attempt')} without a known begin.")
    return Flame(f"Task time ({duration(time.whole.length_us / 1e6)})", time.stacks(), tuple(notes))


def _recording(name: str, recording: Recording) -> Flame:
    return Flame(
        f"Recording {name} ({duration(recording.duration_s)})",
        recorded_stacks(recording, whole=False),
        (f"{recording_summary(recording)}.", *shortfalls(recording)),
    )


def profile_flame(profile: Profile, name: str = "") -> Flame:
    """The flame graph of a profile; with its name, if it is one of several."""
    summary = (f"{profile_summary(profile)}.",) if name else ()
    return Flame(
        f"Profile {name} ({duration(profile.duration_s)})" if name else "Profile",
        profile_stacks(profile),
        (*summary, PROFILE_WIDTH, *profile_shortfalls(profile)),
        stacks_in_time(profile),
    )


def flames_of_recording(recording: Recording) -> list[Flame]:
    """A recording with Ray's frames around the application's and imports folded, and with all frames."""
    return [
        Flame("Application frames", recorded_stacks(recording, whole=False)),
        Flame("All frames", recorded_stacks(recording, unfolded=True)),
    ]
