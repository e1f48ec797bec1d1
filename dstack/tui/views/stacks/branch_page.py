"""The page of a branch of the merged tree: its frame, its executions, and the similar workers outside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from dstack import words
from dstack.analysis.naming.vertex_details import details_of
from dstack.analysis.stacks.app_threads import Execution, PathStep
from dstack.analysis.stacks.peers import AbsentWorker, BranchPeers, Outlier, branch_peers
from dstack.analysis.stacks.stack_tree import StackBranch
from dstack.analysis.views.thread_pages import Stacks
from dstack.report.safe_text import SafeText
from dstack.report.stack_words import outliers_in_words
from dstack.tui.views.stacks.line_parts import (
    FEW,
    About,
    activities_in_words,
    activity_word,
    frame_location,
    list_lines,
    sentence_lines,
    source_lines,
)
from dstack.tui.views.stacks.merged_tree import MergedTree
from dstack.tui.widgets.outline_tree import Line
from dstack.words import plural


def branch_page(tree: MergedTree, branch: StackBranch) -> list[Line]:
    """The frame, the executions by kind, the outliers, and the workers of the same kinds that are not in the branch."""
    stacks, root, outliers = tree.stacks, tree.root, tree.outliers_by_key
    share = f" of {root.count:,}" if branch.count < root.count else ""
    return [
        *(_frame(stacks, branch.place) if branch.place is not None else ()),
        *sentence_lines("count", f"{branch.count:,}{share} here: {activities_in_words(branch.activity)}", "bold"),
        *_executions(stacks, branch),
        *_outliers(stacks, [outliers[one.key] for one in branch.executions if one.key in outliers]),
        *_absent(stacks, branch_peers(root, branch, stacks.absent_workers)),
        *(_unread(stacks) if branch.place is None else ()),
    ]


def _frame(stacks: Stacks, place: PathStep) -> Iterator[Line]:
    yield from sentence_lines("name", place.name, "bold")
    if place.is_frame:
        location = (place.file, place.line)
        yield Line("place", SafeText(frame_location(place), "cyan"), data=About(location=location))
        yield from source_lines("source", stacks.index.snapshot.sources, *location)


def _executions(stacks: Stacks, branch: StackBranch) -> Iterator[Line]:
    kinds: dict[str, list[Execution]] = {}
    for execution in branch.executions:
        kinds.setdefault(execution.kind, []).append(execution)
    for kind, executions in sorted(kinds.items(), key=lambda item: -len(item[1])):
        nodes = len({execution.node for execution in executions})
        ranks = f", {found}" if (found := stacks.ranks_in_words(executions)) else ""
        title = f"{len(executions):,} × {kind}{ranks}" + (f" on {nodes:,} nodes" if nodes > 1 else "")
        yield from list_lines(
            f"executions/{kind}", title, executions, partial(_execution, stacks), is_open=branch.count <= FEW
        )


def _outliers(stacks: Stacks, outliers: Sequence[Outlier]) -> list[Line]:
    if not outliers:
        return []
    title, is_open = outliers_in_words(outliers), len(outliers) <= FEW
    return list_lines("outliers", title, outliers, partial(_outlier, stacks), "bold yellow", is_open=is_open)


def _absent(stacks: Stacks, peers: Sequence[BranchPeers]) -> Iterator[Line]:
    """The workers of each kind that are in other code, idle, dead or not read; no line for a kind without any."""
    for kind in peers:
        absent: list[Execution | AbsentWorker] = [*kind.absent, *kind.elsewhere]
        if absent:
            title = f"Not here: {kind.all - kind.here:,} of {kind.all:,} {kind.kind}: {_reasons(stacks, kind)}"
            key = f"absent/{kind.kind}/{kind.job_id}"
            yield from list_lines(
                key, title, absent, partial(_elsewhere_or_missing, stacks), "yellow", is_open=len(absent) <= FEW
            )


def _reasons(stacks: Stacks, kind: BranchPeers) -> str:
    """``1 elsewhere, 1 not read and 1 idle``."""
    part = stacks.rank_sets.rank_set_of(kind.elsewhere)
    reasons = [f"{kind.away:,} elsewhere{f' {part.aside}' if part else ''}"] if kind.elsewhere else []
    for why in dict.fromkeys(missing.why for missing in kind.absent):
        reasons.append(f"{sum(missing.why == why for missing in kind.absent):,} {why}")
    return words.listed(reasons)


def _unread(stacks: Stacks) -> Iterator[Line]:
    """The processes that may be in any branch."""
    for why, state in (("not read", "not read"), ("unreadable", "with an unreadable stack")):
        missing = [one for one in stacks.absent_workers if one.why == why]
        if missing:
            title = f"{plural(len(missing), 'process', 'processes')} {state}: may be anywhere"
            yield from list_lines(why, title, missing, _missing, "yellow")


def _execution(stacks: Stacks, execution: Execution) -> tuple[SafeText, About]:
    text = activity_word(execution.activity).append(execution.name)
    text.append(f"  {details_of(stacks.index, stacks.vertices[execution.key]).short_place}", "dim")
    return text, About(vertex=execution.key, workers=(execution.worker_id,))


def _outlier(stacks: Stacks, outlier: Outlier) -> tuple[SafeText, About]:
    text, about = _execution(stacks, outlier.execution)
    return text.append("" if outlier.rank_set else f"  {outlier.words}", "yellow"), about


def _elsewhere_or_missing(stacks: Stacks, absent: Execution | AbsentWorker) -> tuple[SafeText, About]:
    return _missing(absent) if isinstance(absent, AbsentWorker) else _execution(stacks, absent)


def _missing(missing: AbsentWorker) -> tuple[SafeText, About]:
    workers = (missing.worker_id,) if missing.worker_id else ()
    return SafeText(f"{missing.name} ").append(missing.detail, "yellow"), About(workers=workers)
