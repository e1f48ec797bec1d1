"""Works that are reported as stuck are stuck, and all stuck works are found if the samples are complete.

The expected result comes from running small random clusters to their end, step by step, without any graph.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import replace

import msgspec
from hypothesis import event, example, given
from hypothesis import strategies as st

from dstack.analysis.graph.in_process_links import NO_OTHERS
from dstack.diagnosis import Diagnosis
from dstack.vertex_keys import Key
from tests.fuzzing.effort import examples
from tests.unit.scenes import SceneProcess, SceneThread
from tests.unit.simulations.coroutines import ClusterScene as CoroutineScene
from tests.unit.simulations.coroutines import SimulatedCluster as CoroutineCluster
from tests.unit.simulations.coroutines import coroutine_clusters
from tests.unit.simulations.in_process_links import ClusterScene as LinkedScene
from tests.unit.simulations.in_process_links import SimulatedCluster as LinkedCluster
from tests.unit.simulations.in_process_links import linked_clusters
from tests.unit.simulations.lifetimes import ClusterScene as LifetimeScene
from tests.unit.simulations.lifetimes import Process as HoldingProcess
from tests.unit.simulations.lifetimes import Request, lifetime_clusters
from tests.unit.simulations.lifetimes import SimulatedCluster as LifetimeCluster
from tests.unit.simulations.process_groups import ClusterScene as GroupScene
from tests.unit.simulations.process_groups import Op, group_clusters
from tests.unit.simulations.process_groups import SimulatedCluster as GroupCluster
from tests.unit.simulations.tasks import POLLS, POLLS_AND_TIMEOUTS, ClusterScene, SimulatedCluster, task_clusters

PERMANENT = ("deadlock", "infeasible", "orphaned")
many = examples(150)


def stuck(cluster: SimulatedCluster | CoroutineCluster) -> set[int]:
    """The works that are unfinished when no step is possible."""
    cluster = copy.deepcopy(cluster)
    cluster.run(random.Random(0))
    return cluster.unfinished()


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
    proc.is_unreachable = how in ("silent", "lost")
    proc.is_unreadable = how in ("unseen", "lost")
    proc.has_no_stacks = how == "without stacks"
    proc.access = "text stack" if how == "refs unread" else "memory"
    for thread in proc.threads:
        thread.is_stable = how != "moving"
        if how == "unreadable" and thread.call and thread.call.kind == "ray.get":
            thread.waits_unreadably("its memory moved")
        if how == "refs unread" and thread.call and thread.call.kind in ("ray.get", "ray.wait"):
            proc.holds_refs_of(thread.call)
            thread.gets_held_refs(thread.call.kind, timeout_s=thread.call.timeout_s)
    for coro in proc.coros:
        coro.is_stable = how != "moving"
        if how == "unreadable" and coro.call:
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
    "silent",
    "unseen",
    "lost",
    "without stacks",
    "moving",
    "unreadable",
    "refs unread",
    "refs unread",
    "incomplete records",
    "partly read",
    "without events",
    "coroutines unread",
)
hidings = st.lists(st.sampled_from(WAYS_TO_HIDE), min_size=12, max_size=12)


@given(task_clusters(), st.randoms(use_true_random=False))
@many
def test_the_unfinished_works_do_not_depend_on_the_order(cluster: SimulatedCluster, order: random.Random) -> None:
    expected = stuck(cluster)

    cluster.run(order)

    assert cluster.unfinished() == expected


@given(task_clusters())
@many
def test_works_that_are_reported_as_stuck_are_stuck(cluster: SimulatedCluster) -> None:
    shown = ClusterScene(cluster)

    found = claimed(shown.scene.diagnose(), shown.work_numbers())

    event("stuck" if found else "not stuck")
    assert found <= stuck(cluster)


@given(task_clusters(exact=True))
@many
def test_all_stuck_works_are_found_in_an_exact_sample(cluster: SimulatedCluster) -> None:
    shown = ClusterScene(cluster)

    diagnosis = shown.scene.diagnose()

    event("stuck" if stuck(cluster) else "not stuck")
    assert claimed(diagnosis, shown.work_numbers()) == stuck(cluster)


@given(task_clusters(exact=True))
@many
def test_a_second_sample_confirms_unchanged_findings(cluster: SimulatedCluster) -> None:
    shown = ClusterScene(cluster)
    shown.scene.sample().second_sample()

    diagnosis = shown.scene.diagnose()

    assert claimed(diagnosis, shown.work_numbers()) == stuck(cluster)
    assert all(finding.confirmed for finding in diagnosis.findings if finding.kind in PERMANENT)


@given(task_clusters(), hidings)
@many
def test_an_unobserved_process_makes_no_work_stuck(cluster: SimulatedCluster, hidings: list[str]) -> None:
    shown = ClusterScene(cluster)
    work_numbers = shown.work_numbers()
    for proc, how in zip(shown.scene.procs, hidings, strict=False):
        hide(proc, how)

    found = claimed(shown.scene.diagnose(), work_numbers)

    assert found <= stuck(cluster)


@given(task_clusters(), hidings, st.integers(0, 6), st.randoms(use_true_random=False))
@many
def test_steps_between_two_samples_make_no_work_stuck(
    cluster: SimulatedCluster, hidings: list[str], steps: int, order: random.Random
) -> None:
    shown = ClusterScene(cluster)
    shown.scene.sample()
    work_numbers = shown.work_numbers()
    cluster.run(order, steps)
    shown.update()
    for proc, how in zip(shown.scene.procs, hidings, strict=False):
        hide(proc, how)
    shown.scene.second_sample()

    confirmed = {
        work_numbers[key]
        for finding in shown.scene.diagnose().findings
        if finding.kind in PERMANENT and finding.confirmed
        for key in (*finding.members, *finding.blocked_behind)
    }

    assert confirmed <= stuck(cluster)


DETECTABLE_WAYS_TO_HIDE = (
    "",
    "",
    "silent",
    "unseen",
    "lost",
    "without stacks",
    "moving",
    "unreadable",
    "refs unread",
    "another task",
    "without events",
    "coroutines unread",
)
"""Failures of a reading that the reading itself shows: missing parts are known to be missing."""
detectable_hidings = st.lists(st.sampled_from(DETECTABLE_WAYS_TO_HIDE), min_size=12, max_size=12)


@given(
    task_clusters(exact=True),
    detectable_hidings,
    detectable_hidings,
    st.integers(0, 6),
    st.randoms(use_true_random=False),
)
@many
def test_stuck_works_are_found_or_the_check_is_incomplete(
    cluster: SimulatedCluster, before: list[str], after: list[str], steps: int, order: random.Random
) -> None:
    is_stuck = bool(stuck(cluster))
    shown = ClusterScene(cluster)
    sample_during_steps(shown, cluster, before, after, steps, order)

    diagnosis = shown.scene.diagnose()

    event(f"{'stuck' if is_stuck else 'not stuck'}: {diagnosis.verdict}{', incomplete' * diagnosis.incomplete}")
    assert not is_stuck or diagnosis.is_stuck or diagnosis.incomplete


@given(
    coroutine_clusters(), detectable_hidings, detectable_hidings, st.integers(0, 6), st.randoms(use_true_random=False)
)
@many
def test_stuck_coroutines_are_found_or_the_check_is_incomplete(
    cluster: CoroutineCluster, before: list[str], after: list[str], steps: int, order: random.Random
) -> None:
    is_stuck = bool(stuck(cluster))
    shown = CoroutineScene(cluster)
    before = [how.replace("moving", "") for how in before]  # an unstable coroutine proceeds
    sample_during_steps(shown, cluster, before, after, steps, order)

    diagnosis = shown.scene.diagnose()

    event(f"{'stuck' if is_stuck else 'not stuck'}: {diagnosis.verdict}{', incomplete' * diagnosis.incomplete}")
    assert not is_stuck or diagnosis.is_stuck or diagnosis.incomplete


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


# Holders of resources, and processes that can end them


@given(lifetime_clusters())
@many
def test_works_that_are_reported_as_stuck_on_resources_are_stuck(cluster: LifetimeCluster) -> None:
    shown = LifetimeScene(cluster)
    work_numbers = shown.work_numbers()

    found = {work_numbers[key] for key in claimed_keys(shown.scene.diagnose()) if key in work_numbers}

    event("stuck" if found else "not stuck")
    assert found <= cluster.stuck()


@given(lifetime_clusters(one_gpu_each=True))
@many
def test_all_works_that_are_stuck_on_one_gpu_are_found(cluster: LifetimeCluster) -> None:
    shown = LifetimeScene(cluster)
    work_numbers = shown.work_numbers()

    found = {work_numbers[key] for key in claimed_keys(shown.scene.diagnose()) if key in work_numbers}

    event("stuck" if cluster.stuck() else "not stuck")
    assert found == cluster.stuck()


PASSED_ON = LifetimeCluster(
    nodes=[2],
    processes=[
        HoldingProcess(kind="driver", job=0, owner=0, waits_for=(3, 4)),
        HoldingProcess(kind="driver", job=1, owner=1, waits_for=(3,)),
        HoldingProcess(kind="actor", job=0, owner=0, gpus=2, idle=True),
        HoldingProcess(kind="actor", job=1, owner=1, handles={2: "variable"}),
    ],
    requests=[Request(owner=0, gpus=1)],
    groups=[],
)
"""An actor of another job has the handle of the idle actor that holds all GPUs, and is not observed."""


CREATOR_GOES_ON = LifetimeCluster(
    nodes=[1],
    processes=[
        HoldingProcess(kind="driver", job=0, owner=0),
        HoldingProcess(kind="driver", job=1, owner=1, waits_for=(4,)),
        HoldingProcess(kind="actor", job=1, owner=1, gpus=1, idle=True),
        HoldingProcess(kind="actor", job=0, owner=0, idle=True, handles={2: "variable"}, named_in=1, detached=True),
    ],
    requests=[Request(owner=1, gpus=1)],
    groups=[],
)
"""The creator of a detached actor runs, and may call it; the detached actor may end the holder."""


@given(lifetime_clusters(), hidings)
@example(CREATOR_GOES_ON, [""] * 4)
@example(PASSED_ON, [*[""] * 3, "silent"])
@many
def test_an_unobserved_holder_may_release_its_resources(cluster: LifetimeCluster, hidings: list[str]) -> None:
    shown = LifetimeScene(cluster)
    work_numbers = shown.work_numbers()
    for proc, how in zip(shown.scene.procs, hidings, strict=False):
        hide(proc, how)

    found = {work_numbers[key] for key in claimed_keys(shown.scene.diagnose()) if key in work_numbers}

    assert found <= cluster.stuck()


def claimed_keys(diagnosis: Diagnosis) -> set[Key]:
    """The vertices that the findings report as stuck."""
    findings = [finding for finding in diagnosis.findings if finding.kind in PERMANENT]
    return {key for finding in findings for key in (*finding.members, *finding.blocked_behind)}


# Coroutines


@given(coroutine_clusters(), st.randoms(use_true_random=False))
@many
def test_the_unfinished_coroutines_do_not_depend_on_the_order(cluster: CoroutineCluster, order: random.Random) -> None:
    expected = stuck(cluster)

    cluster.run(order)

    assert cluster.unfinished() == expected


@given(coroutine_clusters())
@many
def test_all_stuck_coroutines_are_found(cluster: CoroutineCluster) -> None:
    shown = CoroutineScene(cluster)

    found = claimed(shown.scene.diagnose(), shown.work_numbers)

    event("stuck" if stuck(cluster) else "not stuck")
    assert found == stuck(cluster)


@given(coroutine_clusters())
@many
def test_a_second_sample_confirms_stuck_coroutines(cluster: CoroutineCluster) -> None:
    shown = CoroutineScene(cluster)
    shown.scene.sample().second_sample()

    diagnosis = shown.scene.diagnose()

    assert claimed(diagnosis, shown.work_numbers) == stuck(cluster)
    assert all(finding.confirmed for finding in diagnosis.findings if finding.kind in PERMANENT)


@given(coroutine_clusters(), hidings)
@many
def test_unobserved_coroutines_make_no_work_stuck(cluster: CoroutineCluster, hidings: list[str]) -> None:
    shown = CoroutineScene(cluster)
    for proc, how in zip(shown.scene.procs, hidings, strict=False):
        hide(proc, how)

    found = claimed(shown.scene.diagnose(), shown.work_numbers)

    assert found <= stuck(cluster)


@given(coroutine_clusters(), hidings, st.integers(0, 6), st.randoms(use_true_random=False))
@many
def test_coroutines_that_proceed_between_two_samples_are_not_stuck(
    cluster: CoroutineCluster, hidings: list[str], steps: int, order: random.Random
) -> None:
    shown = CoroutineScene(cluster)
    shown.scene.sample()
    cluster.run(order, steps)
    shown.update()
    for proc, how in zip(shown.scene.procs, hidings, strict=False):
        hide(proc, how)
    shown.scene.second_sample()

    findings = [one for one in shown.scene.diagnose().findings if one.kind in PERMANENT and one.confirmed]

    found = {shown.work_numbers[key] for one in findings for key in (*one.members, *one.blocked_behind)}
    assert found <= stuck(cluster)


# Loops that poll


def read_between(shown: ClusterScene, change: Callable[[int], object] = lambda number: None) -> Diagnosis:
    """The diagnosis of two samples, with four readings between them of all processes that may poll.

    Before each of the six, the scene is restored to the cluster's state, and changed.
    """
    for number in range(6):
        restore(shown)
        change(number)
        shown.scene.read() if 0 < number < 5 else shown.scene.sample()
    return shown.scene.diagnose()


def restore(shown: ClusterScene) -> None:
    """Brings the scene up to date with the cluster, with every thread in its own code."""
    for proc in shown.scene.procs:
        for thread in proc.threads:
            thread.function, thread.is_torn = "run", False
    shown.driver.threads[0].task_id = None
    shown.update()


def without_polls(cluster: SimulatedCluster) -> SimulatedCluster:
    """The same world in which all that have timeouts give up in the end."""
    cluster = copy.deepcopy(cluster)
    for work in cluster.works:
        work.block = work.block and replace(work.block, polls=False)
    cluster.driver = cluster.driver and replace(cluster.driver, polls=False)
    return cluster


@given(task_clusters(exact=True, kinds_of_block=POLLS))
@many
def test_all_stuck_works_are_found_where_all_loops_only_poll(cluster: SimulatedCluster) -> None:
    """Loops that wait only for each other are excluded: their values may come from outside."""
    shown = ClusterScene(cluster)

    diagnosis = read_between(shown)

    found, proven = claimed(diagnosis, shown.work_numbers()), stuck(without_polls(cluster))
    event(
        "loops alone" if cluster.mutually_polling_loops() else "stuck by polls" if found != proven else "stuck by none"
    )
    assert proven <= found <= stuck(cluster)
    assert cluster.mutually_polling_loops() or found == stuck(cluster)


@given(task_clusters(kinds_of_block=POLLS), st.lists(detectable_hidings, min_size=6, max_size=6))
@many
def test_unobserved_polling_loops_make_no_work_stuck(cluster: SimulatedCluster, hidings: list[list[str]]) -> None:
    shown = ClusterScene(cluster)
    work_numbers = shown.work_numbers()

    def hide_some(number: int) -> None:
        for proc, how in zip(shown.scene.procs, hidings[number], strict=False):
            hide(proc, how)

    assert claimed(read_between(shown, hide_some), work_numbers) <= stuck(cluster)


@given(task_clusters(kinds_of_block=POLLS_AND_TIMEOUTS))
@many
def test_confirmed_works_are_stuck_without_assumptions_about_polling_loops(cluster: SimulatedCluster) -> None:
    shown = ClusterScene(cluster)

    confirmed = {
        shown.work_numbers()[key]
        for finding in read_between(shown).findings
        if finding.kind in PERMANENT and finding.confirmed
        for key in finding.members
    }

    event("confirmed" if confirmed else "nothing confirmed")
    assert confirmed <= stuck(without_polls(cluster))


def other_refs(thread: SceneThread) -> None:
    assert thread.call is not None
    thread.call = msgspec.structs.replace(thread.call, refs=("ab" * 24 + "01000000",), owners=("",))


def no_timeout(thread: SceneThread) -> None:
    assert thread.call is not None
    thread.call = msgspec.structs.replace(thread.call, timeout_s=None)


def other_work(thread: SceneThread) -> None:
    thread.computes().function = "other_work"


def torn(thread: SceneThread) -> None:
    thread.is_torn = True


def other_task(thread: SceneThread) -> None:
    thread.task_id = "cd" * 24


DIFFERENT: tuple[Callable[[SceneThread], None], ...] = (other_refs, no_timeout, other_work, torn, other_task)
different = st.lists(st.tuples(st.integers(1, 4), st.sampled_from(DIFFERENT)), min_size=12, max_size=12)


def gives_up(shown: ClusterScene, thread: SceneThread) -> bool:
    """Whether a thread waits with a timeout and does not only poll."""
    block = shown.blocks.get(thread.key)
    return thread.call is not None and block is not None and block.is_timed and not block.polls


@given(task_clusters(exact=True, kinds_of_block=POLLS_AND_TIMEOUTS), different)
@many
def test_loops_with_one_other_activity_make_no_work_stuck(
    cluster: SimulatedCluster, different: list[tuple[int, Callable[[SceneThread], None]]]
) -> None:
    shown = ClusterScene(cluster)

    def differ(at: int) -> None:
        blocked = (thread for proc in shown.scene.procs for thread in proc.threads if gives_up(shown, thread))
        for thread, (when, change) in zip(blocked, different, strict=False):
            if when == at:
                change(thread)

    found = claimed(read_between(shown, differ), shown.work_numbers())

    event("some give up" if any(one.is_timed and not one.polls for one in cluster.blocks()) else "none gives up")
    event("stuck" if found else "not stuck")
    assert found <= stuck(cluster)


@given(task_clusters(exact=True, kinds_of_block=POLLS), st.integers(1, 3), st.randoms(use_true_random=False))
@many
def test_no_deadlock_depends_on_a_poll_where_the_job_made_progress(
    cluster: SimulatedCluster, steps: int, order: random.Random
) -> None:
    shown = ClusterScene(cluster)
    before = running_of(cluster)

    def run(number: int) -> None:
        if number == 4:
            cluster.run(order, steps)
            shown.update()

    diagnosis = read_between(shown, run)

    has_moved = before != running_of(cluster)
    polls = [vertex for vertex in diagnosis.vertices.values() if vertex.wait and vertex.wait.polls]
    event("progress" if has_moved else "no progress")
    assert not (has_moved and polls)
    confirmed = {
        shown.work_numbers()[key]
        for finding in diagnosis.findings
        if finding.kind in PERMANENT and finding.confirmed
        for key in finding.members
    }
    assert confirmed <= stuck(without_polls(cluster))


def running_of(cluster: SimulatedCluster) -> set[int]:
    """The numbers of the running works."""
    return {number for number, work in enumerate(cluster.works) if work.phase == "runs"}


# Objects inside a process


def stuck_works(cluster: LinkedCluster) -> set[int]:
    """The works that are unfinished when no step is possible."""
    cluster = copy.deepcopy(cluster)
    cluster.run(random.Random(0))
    return cluster.unfinished()


def linked_without_polls(cluster: LinkedCluster) -> LinkedCluster:
    """The same world in which all that have timeouts give up in the end."""
    cluster = copy.deepcopy(cluster)
    for thread in cluster.threads:
        if thread.wait and thread.wait.timeout == "polls":
            thread.wait = replace(thread.wait, timeout="gives up")
    return cluster


@given(linked_clusters(), st.randoms(use_true_random=False))
@many
def test_the_unfinished_threads_do_not_depend_on_the_order(cluster: LinkedCluster, order: random.Random) -> None:
    expected = stuck_works(cluster)

    cluster.run(order)

    assert cluster.unfinished() == expected


@given(linked_clusters())
@many
def test_threads_that_are_stuck_on_process_objects_are_found(cluster: LinkedCluster) -> None:
    shown = LinkedScene(cluster)

    diagnosis = shown.scene.sample().sample().diagnose()

    links = [vertex.key for vertex in diagnosis.vertices.values() if vertex.wait and NO_OTHERS in vertex.wait.assumed]
    found = claimed(diagnosis, shown.work_numbers())
    event(
        "stuck on an object"
        if any(shown.work_numbers().get(key) in found for key in links)
        else "stuck"
        if found
        else "free"
    )
    check_claims(cluster, found)
    assert confirmed_numbers(diagnosis, shown) <= proven_stuck(cluster)


def check_claims(cluster: LinkedCluster, found: set[int]) -> None:
    """Checks that all stuck works are found, except idle services and works that are stuck only under assumptions."""
    active = cluster.without_waits(cluster.idle_services())
    assert proven_stuck(cluster) <= found <= stuck_works(active)
    event("under assumptions alone" if active.stuck_under_assumptions() else "all found")
    assert active.stuck_under_assumptions() or found == stuck_works(active)


def proven_stuck(cluster: LinkedCluster) -> set[int]:
    """The works that are stuck even if other code may reach the objects, and no loop only polls."""
    return stuck_works(cluster.without_waits(cluster.suspected()))


def confirmed_numbers(diagnosis: Diagnosis, shown: LinkedScene) -> set[int]:
    """The numbers of the members of confirmed findings."""
    confirmed = (finding for finding in diagnosis.findings if finding.kind in PERMANENT and finding.confirmed)
    return {shown.work_numbers()[key] for finding in confirmed for key in finding.members}


@given(linked_clusters(timeouts=("none", "none", "polls")))
@many
def test_stuck_threads_that_poll_objects_are_found_where_all_loops_only_poll(cluster: LinkedCluster) -> None:
    shown = LinkedScene(cluster)

    diagnosis = shown.scene.watch(4).diagnose()

    found = claimed(diagnosis, shown.work_numbers())
    event("stuck by polls" if stuck_works(cluster) != stuck_works(linked_without_polls(cluster)) else "no polls")
    check_claims(cluster, found)
    assert confirmed_numbers(diagnosis, shown) <= proven_stuck(cluster)


@given(linked_clusters(timeouts=("none", "none", "polls", "gives up")), different)
@many
def test_polls_of_objects_with_one_other_activity_make_no_work_stuck(
    cluster: LinkedCluster, different: list[tuple[int, Callable[[SceneThread], None]]]
) -> None:
    shown = LinkedScene(cluster)
    givers = [
        number for number, thread in enumerate(cluster.threads) if thread.wait and thread.wait.timeout == "gives up"
    ]
    for number in range(6):
        for thread, (when, change) in zip(givers, different, strict=False):
            shown.show_thread(thread)
            if when == number:
                change(shown.threads[thread])
        shown.scene.read() if 0 < number < 5 else shown.scene.sample()

    diagnosis = shown.scene.diagnose()

    found = claimed(diagnosis, shown.work_numbers())
    event("stuck" if found else "not stuck")
    assert found <= stuck_works(cluster)
    assert confirmed_numbers(diagnosis, shown) <= proven_stuck(cluster)


# Process groups


def unfinished_ranks(cluster: GroupCluster, order: random.Random) -> set[int]:
    """The ranks that never end in one continuation of the cluster."""
    cluster = copy.deepcopy(cluster)
    cluster.run(order)
    return cluster.unfinished()


def claimed_ranks(shown: GroupScene, diagnosis: Diagnosis) -> set[int]:
    """The ranks that the findings report as stuck."""
    ranks = shown.rank_numbers()
    return {rank for key in claimed_keys(diagnosis) if (rank := ranks[key]) is not None}


@given(group_clusters(), st.randoms(use_true_random=False))
@many
def test_all_stuck_ranks_are_found_once_no_step_is_possible(cluster: GroupCluster, order: random.Random) -> None:
    cluster.run(order)
    shown = GroupScene(cluster)

    diagnosis = shown.scene.sample().second_sample().diagnose()

    found = claimed_ranks(shown, diagnosis)
    event("in doubt" if cluster.is_in_doubt() else "stuck" if cluster.unfinished() else "not stuck")
    assert found <= cluster.unfinished()
    assert cluster.is_in_doubt() or found == cluster.unfinished()


pauses = st.lists(st.sampled_from([0, 0, 0, 1, 2]), min_size=12, max_size=12)


def with_ended_steps(cluster: GroupCluster, *ranks: int) -> GroupCluster:
    """The cluster after the present steps of these ranks have ended."""
    for rank in ranks:
        cluster.end(rank)
    return cluster


MEET, ROOT = Op("all_reduce"), Op("broadcast", peer=0)
BEGUN = with_ended_steps(GroupCluster([(0, 1, 2)], [[MEET], [Op("work"), MEET], [Op("begin"), Op("call", peer=0)]]), 2)
"""Rank 2 has begun the call that rank 0 waits in, and calls that rank; only rank 1 is late."""
SENT = with_ended_steps(GroupCluster([(0, 1, 2)], [[ROOT, Op("call", peer=2)], [Op("work"), ROOT], [ROOT]]), 0)
"""The root has sent its data, and calls the rank to which rank 1 forwards them."""


@example(BEGUN, [0] * 12, random.Random(0))
@example(SENT, [0] * 12, random.Random(0))
@given(group_clusters(), pauses, st.randoms(use_true_random=False))
@many
def test_processes_read_at_different_times_make_no_rank_stuck(
    cluster: GroupCluster, pauses: list[int], order: random.Random
) -> None:
    cluster = copy.deepcopy(cluster)
    shown = GroupScene(cluster)
    read_processes_in_turn(shown, pauses[:6], order)
    shown.scene.sample()
    cluster.settle(order)
    at = copy.deepcopy(cluster)
    read_processes_in_turn(shown, pauses[6:], order)
    shown.scene.sample()

    found = claimed_ranks(shown, shown.scene.diagnose())

    event("stuck" if found else "not stuck")
    for seed in range(5):
        assert found <= unfinished_ranks(at, random.Random(seed))


def read_processes_in_turn(shown: GroupScene, pauses: list[int], order: random.Random) -> None:
    """Reads one process after the other, in random order, while the others proceed."""
    several: list[int | None] = [None, *range(len(shown.ranks))]
    order.shuffle(several)
    for one, steps in zip(several, pauses, strict=False):
        shown.cluster.run(order, steps)
        if one is None:
            shown.update_driver()
        else:
            shown.update(one)
