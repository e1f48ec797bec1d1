"""The works that a diagnosis reports as stuck, and readings with failures."""

from __future__ import annotations

import copy
import dataclasses
import random
from collections.abc import Callable, Sequence

from hypothesis import strategies as st

from dstack.model.diagnosis import Diagnosis
from dstack.model.vertex_keys import Key
from dstack.observed.calls import Awaitables, Refs
from tests.fuzzing.effort import examples
from tests.unit.scenes import SceneProcess, SceneThread
from tests.unit.simulations.coroutines import ClusterScene as CoroutineScene
from tests.unit.simulations.coroutines import SimulatedCluster as CoroutineCluster
from tests.unit.simulations.tasks import DRIVER, ClusterScene, SimulatedCluster, Stops

PERMANENT = ("deadlock", "infeasible", "orphaned")


many = examples(150)


def stuck(cluster: SimulatedCluster | CoroutineCluster) -> set[int]:
    """The works that are unfinished when no step is possible."""
    cluster = copy.deepcopy(cluster)
    cluster.run(random.Random(0))
    return cluster.unfinished()


def stuck_at_worst(cluster: SimulatedCluster | CoroutineCluster) -> set[int]:
    """The works that are unfinished even if works that go on fail, cancel and kill without a sign in their source."""
    stuck_by_source, cluster = stuck(cluster), copy.deepcopy(cluster)
    cluster.all_fail = True
    if isinstance(cluster, SimulatedCluster):
        cluster.all_stop = True
        for number in stuck_by_source - {DRIVER}:
            cluster.works[number].stops = _shown(cluster.works[number].stops)
        cluster.driver_stops = _shown(cluster.driver_stops) if DRIVER in stuck_by_source else cluster.driver_stops
    return stuck(cluster)


def _shown(stops: Stops | None) -> Stops | None:
    return stops if stops and stops.is_shown else None


def without_unread_stops(shown: ClusterScene, hidings: Sequence[str]) -> SimulatedCluster:
    """The same world, in which works of processes that are not read completely cancel and kill nothing."""
    cluster = copy.deepcopy(shown.cluster)
    hidden = [proc for proc, how in zip(shown.scene.procs, hidings, strict=False) if how]
    for number, proc in shown.procs.items():
        if proc in hidden:
            cluster.works[number].stops = None
    if shown.driver in hidden:
        cluster.driver_stops = None
    return cluster


def confirmed(diagnosis: Diagnosis, work_numbers: dict[Key, int]) -> set[int]:
    """The members of confirmed findings, which have no assumption."""
    found = (one for one in diagnosis.findings if one.kind in PERMANENT and one.confirmed)
    return {work_numbers[key] for finding in found for key in finding.members}


def claimed(diagnosis: Diagnosis, work_numbers: dict[Key, int]) -> set[int]:
    """The works that the findings report as stuck."""
    keys = [
        key
        for finding in diagnosis.findings
        if finding.kind in PERMANENT
        for key in (*finding.members, *finding.blocked_behind)
    ]
    assert (diagnosis.verdict in ("deadlock", "hang")) == bool(keys)
    return {work_numbers[key] for key in keys}


def hide(proc: SceneProcess, how: str) -> None:
    proc.is_unreachable = how in ("unreachable", "lost")
    proc.is_unreadable = how in ("unreadable", "lost")
    proc.has_no_stacks = how == "without stacks"
    proc.access = "text stack" if how == "refs unread" else "memory"
    for thread in proc.threads:
        thread.is_stable = how != "unstable"
        if how == "unread call" and thread.call and thread.call.site == "ray.get":
            thread.waits_unreadably("its memory moved")
        if how == "refs unread" and thread.call and thread.call.site in ("ray.get", "ray.wait"):
            proc.holds_refs_of(thread.call)
            thread.gets_held_refs(thread.call.site, timeout_s=thread.call.timeout_s)
    for coro in proc.coros:
        coro.is_stable = how != "unstable"
        if how == "unread call" and coro.call:
            coro.waits_unreadably("its memory moved")
    leave_out(proc, how)


def leave_out(proc: SceneProcess, how: str) -> None:
    match how:
        case "coroutines unread":
            proc.coros, proc.coroutines_read = [], False
        case "incomplete records":
            del proc.submitted[::2]
        case "without events":
            for call in proc.submitted:
                call.has_arrived = False
        case "another task":
            for thread in proc.threads:
                thread.task_id = None
        case "partly read":
            del proc.threads[1:]
            del proc.coros[1:]


WAYS_TO_HIDE = (
    "",
    "unreachable",
    "unreadable",
    "lost",
    "without stacks",
    "unstable",
    "unread call",
    "refs unread",
    "refs unread",
    "incomplete records",
    "partly read",
    "without events",
    "coroutines unread",
)


hidings = st.lists(st.sampled_from(WAYS_TO_HIDE), min_size=12, max_size=12)


DETECTABLE_WAYS_TO_HIDE = (
    "",
    "",
    "unreachable",
    "unreadable",
    "lost",
    "without stacks",
    "unstable",
    "unread call",
    "refs unread",
    "another task",
    "without events",
    "coroutines unread",
)
"""Failures of a reading that the reading itself shows: missing parts are known to be missing."""


detectable_hidings = st.lists(st.sampled_from(DETECTABLE_WAYS_TO_HIDE), min_size=12, max_size=12)


def sample_during_steps(
    shown: ClusterScene | CoroutineScene,
    cluster: SimulatedCluster | CoroutineCluster,
    before: list[str],
    after: list[str],
    steps: int,
    order: random.Random,
) -> None:
    """Takes both samples of a cluster that proceeds between them, with failures of reading in each."""
    for proc, how in zip(shown.scene.procs, before, strict=False):
        hide(proc, how)
    shown.scene.sample()
    cluster.run(order, steps)
    for proc in shown.scene.procs:
        hide(proc, "")
    shown.update()
    for proc, how in zip(shown.scene.procs, after, strict=False):
        hide(proc, how)
    shown.scene.second_sample()


def claimed_keys(diagnosis: Diagnosis) -> set[Key]:
    """The vertices that the findings report as stuck."""
    findings = [finding for finding in diagnosis.findings if finding.kind in PERMANENT]
    return {key for finding in findings for key in (*finding.members, *finding.blocked_behind)}


def other_refs(thread: SceneThread) -> None:
    assert thread.call is not None
    assert isinstance(thread.call.need, Refs | Awaitables)
    thread.call = dataclasses.replace(
        thread.call, need=dataclasses.replace(thread.call.need, refs=("ab" * 24 + "01000000",), owners=("",))
    )


def no_timeout(thread: SceneThread) -> None:
    assert thread.call is not None
    thread.call = dataclasses.replace(thread.call, timeout_s=None)


def other_work(thread: SceneThread) -> None:
    thread.computes().function = "other_work"


def torn(thread: SceneThread) -> None:
    thread.is_torn = True


def other_task(thread: SceneThread) -> None:
    thread.task_id = "cd" * 24


DIFFERENT: tuple[Callable[[SceneThread], None], ...] = (other_refs, no_timeout, other_work, torn, other_task)


different = st.lists(st.tuples(st.integers(1, 4), st.sampled_from(DIFFERENT)), min_size=12, max_size=12)
