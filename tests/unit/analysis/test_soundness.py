"""Whoever is said to be stuck is, whatever was not seen; and whoever is stuck is found, if all was.

The truth comes from running random little worlds to their end, step by step, without any graph.
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
from tests.unit.simulations.coroutines import Show as CoroutineShow
from tests.unit.simulations.coroutines import World as CoroutineWorld
from tests.unit.simulations.coroutines import coroutine_worlds
from tests.unit.simulations.in_process_links import Show as LinkedShow
from tests.unit.simulations.in_process_links import World as LinkedWorld
from tests.unit.simulations.in_process_links import linked_worlds
from tests.unit.simulations.lifetimes import Process as HoldingProcess
from tests.unit.simulations.lifetimes import Request, holding_worlds
from tests.unit.simulations.lifetimes import Show as HoldingShow
from tests.unit.simulations.lifetimes import World as HoldingWorld
from tests.unit.simulations.process_groups import Op, group_worlds
from tests.unit.simulations.process_groups import Show as GroupShow
from tests.unit.simulations.process_groups import World as GroupWorld
from tests.unit.simulations.tasks import POLLS, POLLS_AND_TIMEOUTS, Show, World, worlds

FOR_GOOD = ("deadlock", "infeasible", "orphaned")
many = examples(150)


def stuck(world: World | CoroutineWorld) -> set[int]:
    """Who is left when everything has happened that can."""
    world = copy.deepcopy(world)
    world.go_on(random.Random(0))
    return world.left()


def claimed(diagnosis: Diagnosis, who: dict[Key, int]) -> set[int]:
    """Who is said never to go on."""
    keys = [
        key
        for finding in diagnosis.findings
        if finding.kind in FOR_GOOD
        for key in (*finding.members, *finding.blocked_behind)
    ]
    assert (diagnosis.verdict in ("deadlock", "hang")) == bool(keys)
    return {who[key] for key in keys}


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
        case "forgetful":
            del proc.submitted[::2]
        case "without events":
            for call in proc.submitted:
                call.has_arrived = False
        case "another task":
            for thread in proc.threads:
                thread.task_id = None
        case "half seen":
            del proc.threads[1:]
            del proc.coros[1:]


HOW_TO_HIDE = (
    "",
    "silent",
    "unseen",
    "lost",
    "without stacks",
    "moving",
    "unreadable",
    "refs unread",
    "refs unread",
    "forgetful",
    "half seen",
    "without events",
    "coroutines unread",
)
hidings = st.lists(st.sampled_from(HOW_TO_HIDE), min_size=12, max_size=12)


@given(worlds(), st.randoms(use_true_random=False))
@many
def test_who_is_left_at_the_end_does_not_depend_on_the_order(world: World, order: random.Random) -> None:
    expected = stuck(world)

    world.go_on(order)

    assert world.left() == expected


@given(worlds())
@many
def test_who_is_said_to_be_stuck_is(world: World) -> None:
    show = Show(world)

    found = claimed(show.scene.diagnose(), show.who())

    event("stuck" if found else "not stuck")
    assert found <= stuck(world)


@given(worlds(exact=True))
@many
def test_who_is_stuck_is_found_where_a_look_shows_all(world: World) -> None:
    show = Show(world)

    diagnosis = show.scene.diagnose()

    event("stuck" if stuck(world) else "not stuck")
    assert claimed(diagnosis, show.who()) == stuck(world)


@given(worlds(exact=True))
@many
def test_a_second_look_confirms_what_has_not_changed(world: World) -> None:
    show = Show(world)
    show.scene.sample().second_sample()

    diagnosis = show.scene.diagnose()

    assert claimed(diagnosis, show.who()) == stuck(world)
    assert all(finding.confirmed for finding in diagnosis.findings if finding.kind in FOR_GOOD)


@given(worlds(), hidings)
@many
def test_what_was_not_seen_makes_nobody_stuck(world: World, hidings: list[str]) -> None:
    show = Show(world)
    who = show.who()
    for proc, how in zip(show.scene.procs, hidings, strict=False):
        hide(proc, how)

    found = claimed(show.scene.diagnose(), who)

    assert found <= stuck(world)


@given(worlds(), hidings, st.integers(0, 6), st.randoms(use_true_random=False))
@many
def test_what_goes_on_between_two_looks_makes_nobody_stuck(
    world: World, hidings: list[str], steps: int, order: random.Random
) -> None:
    show = Show(world)
    show.scene.sample()
    who = show.who()
    world.go_on(order, steps)
    show.update()
    for proc, how in zip(show.scene.procs, hidings, strict=False):
        hide(proc, how)
    show.scene.second_sample()

    confirmed = {
        who[key]
        for finding in show.scene.diagnose().findings
        if finding.kind in FOR_GOOD and finding.confirmed
        for key in (*finding.members, *finding.blocked_behind)
    }

    assert confirmed <= stuck(world)


FAIR = (
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
"""What may go wrong with a reading and shows in it: what is missing is known to be missing."""
fair_hidings = st.lists(st.sampled_from(FAIR), min_size=12, max_size=12)


@given(worlds(exact=True), fair_hidings, fair_hidings, st.integers(0, 6), st.randoms(use_true_random=False))
@many
def test_no_check_is_conclusive_where_works_were_stuck_all_the_while(
    world: World, before: list[str], after: list[str], steps: int, order: random.Random
) -> None:
    is_stuck = bool(stuck(world))
    show = Show(world)
    look_while(show, world, before, after, steps, order)

    diagnosis = show.scene.diagnose()

    event(f"{'stuck' if is_stuck else 'not stuck'}: {diagnosis.verdict}{', incomplete' * diagnosis.incomplete}")
    assert not is_stuck or diagnosis.is_stuck or diagnosis.incomplete


@given(coroutine_worlds(), fair_hidings, fair_hidings, st.integers(0, 6), st.randoms(use_true_random=False))
@many
def test_no_check_is_conclusive_where_coroutines_were_stuck_all_the_while(
    world: CoroutineWorld, before: list[str], after: list[str], steps: int, order: random.Random
) -> None:
    is_stuck = bool(stuck(world))
    show = CoroutineShow(world)
    before = [how.replace("moving", "") for how in before]  # one that moves proceeds
    look_while(show, world, before, after, steps, order)

    diagnosis = show.scene.diagnose()

    event(f"{'stuck' if is_stuck else 'not stuck'}: {diagnosis.verdict}{', incomplete' * diagnosis.incomplete}")
    assert not is_stuck or diagnosis.is_stuck or diagnosis.incomplete


def look_while(
    show: Show | CoroutineShow,
    world: World | CoroutineWorld,
    before: list[str],
    after: list[str],
    steps: int,
    order: random.Random,
) -> None:
    """Takes both samples of a world that goes on between them, with something amiss in each."""
    for proc, how in zip(show.scene.procs, before, strict=False):
        hide(proc, how)
    show.scene.sample()
    world.go_on(order, steps)
    for proc in show.scene.procs:
        hide(proc, "")
    show.update()
    for proc, how in zip(show.scene.procs, after, strict=False):
        hide(proc, how)
    show.scene.second_sample()


# Who holds resources, and can end those who do


@given(holding_worlds())
@many
def test_whoever_is_said_to_wait_for_good_for_resources_does(world: HoldingWorld) -> None:
    show = HoldingShow(world)
    who = show.who()

    found = {who[key] for key in said(show.scene.diagnose()) if key in who}

    event("stuck" if found else "not stuck")
    assert found <= world.stuck()


@given(holding_worlds(one_gpu_each=True))
@many
def test_whoever_waits_for_good_for_one_gpu_is_found(world: HoldingWorld) -> None:
    show = HoldingShow(world)
    who = show.who()

    found = {who[key] for key in said(show.scene.diagnose()) if key in who}

    event("stuck" if world.stuck() else "not stuck")
    assert found == world.stuck()


PASSED_ON = HoldingWorld(
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
"""The handle of an idle actor that holds all GPUs is in the hands of another job's actor, where nobody may see it."""


CREATOR_GOES_ON = HoldingWorld(
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
"""The creator of a detached actor runs, and may call it, and so end the one of which it has a handle."""


@given(holding_worlds(), hidings)
@example(CREATOR_GOES_ON, [""] * 4)
@example(PASSED_ON, [*[""] * 3, "silent"])
@many
def test_who_was_not_seen_may_let_go(world: HoldingWorld, hidings: list[str]) -> None:
    show = HoldingShow(world)
    who = show.who()
    for proc, how in zip(show.scene.procs, hidings, strict=False):
        hide(proc, how)

    found = {who[key] for key in said(show.scene.diagnose()) if key in who}

    assert found <= world.stuck()


def said(diagnosis: Diagnosis) -> set[Key]:
    """The vertices of those who are said never to go on."""
    findings = [finding for finding in diagnosis.findings if finding.kind in FOR_GOOD]
    return {key for finding in findings for key in (*finding.members, *finding.blocked_behind)}


# Coroutines


@given(coroutine_worlds(), st.randoms(use_true_random=False))
@many
def test_which_coroutines_are_left_does_not_depend_on_the_order(world: CoroutineWorld, order: random.Random) -> None:
    expected = stuck(world)

    world.go_on(order)

    assert world.left() == expected


@given(coroutine_worlds())
@many
def test_which_coroutine_is_stuck_is_found(world: CoroutineWorld) -> None:
    show = CoroutineShow(world)

    found = claimed(show.scene.diagnose(), show.who)

    event("stuck" if stuck(world) else "not stuck")
    assert found == stuck(world)


@given(coroutine_worlds())
@many
def test_a_second_look_confirms_which_coroutine_is_stuck(world: CoroutineWorld) -> None:
    show = CoroutineShow(world)
    show.scene.sample().second_sample()

    diagnosis = show.scene.diagnose()

    assert claimed(diagnosis, show.who) == stuck(world)
    assert all(finding.confirmed for finding in diagnosis.findings if finding.kind in FOR_GOOD)


@given(coroutine_worlds(), hidings)
@many
def test_coroutines_that_were_not_seen_make_nobody_stuck(world: CoroutineWorld, hidings: list[str]) -> None:
    show = CoroutineShow(world)
    for proc, how in zip(show.scene.procs, hidings, strict=False):
        hide(proc, how)

    found = claimed(show.scene.diagnose(), show.who)

    assert found <= stuck(world)


@given(coroutine_worlds(), hidings, st.integers(0, 6), st.randoms(use_true_random=False))
@many
def test_coroutines_that_go_on_between_two_looks_are_not_stuck(
    world: CoroutineWorld, hidings: list[str], steps: int, order: random.Random
) -> None:
    show = CoroutineShow(world)
    show.scene.sample()
    world.go_on(order, steps)
    show.update()
    for proc, how in zip(show.scene.procs, hidings, strict=False):
        hide(proc, how)
    show.scene.second_sample()

    findings = [one for one in show.scene.diagnose().findings if one.kind in FOR_GOOD and one.confirmed]

    found = {show.who[key] for one in findings for key in (*one.members, *one.blocked_behind)}
    assert found <= stuck(world)


# Loops that poll


def read_between(show: Show, change: Callable[[int], object] = lambda number: None) -> Diagnosis:
    """The diagnosis of two samples with four readings between them of all that may poll.

    Before each of the six, the scene is made that of the world again, and changed.
    """
    for number in range(6):
        restore(show)
        change(number)
        show.scene.read() if 0 < number < 5 else show.scene.sample()
    return show.scene.diagnose()


def restore(show: Show) -> None:
    """Shows the world as it is, and every thread in its own code."""
    for proc in show.scene.procs:
        for thread in proc.threads:
            thread.function, thread.is_torn = "run", False
    show.driver.threads[0].task_id = None
    show.update()


def without_polls(world: World) -> World:
    """The same world in which all that have timeouts give up in the end."""
    world = copy.deepcopy(world)
    for work in world.works:
        work.block = work.block and replace(work.block, polls=False)
    world.driver = world.driver and replace(world.driver, polls=False)
    return world


@given(worlds(exact=True, kinds_of_block=POLLS))
@many
def test_where_all_loops_only_poll_who_is_stuck_is_found(world: World) -> None:
    """Unless loops wait for nothing but each other: what they poll for may come from outside."""
    show = Show(world)

    diagnosis = read_between(show)

    found, proven = claimed(diagnosis, show.who()), stuck(without_polls(world))
    event("loops alone" if world.loops_alone() else "stuck by polls" if found != proven else "stuck by none")
    assert proven <= found <= stuck(world)
    assert world.loops_alone() or found == stuck(world)


@given(worlds(kinds_of_block=POLLS), st.lists(fair_hidings, min_size=6, max_size=6))
@many
def test_where_all_loops_only_poll_what_was_not_seen_makes_nobody_stuck(world: World, hidings: list[list[str]]) -> None:
    show = Show(world)
    who = show.who()

    def hide_some(number: int) -> None:
        for proc, how in zip(show.scene.procs, hidings[number], strict=False):
            hide(proc, how)

    assert claimed(read_between(show, hide_some), who) <= stuck(world)


@given(worlds(kinds_of_block=POLLS_AND_TIMEOUTS))
@many
def test_what_is_confirmed_is_stuck_whatever_loops_do_that_poll(world: World) -> None:
    show = Show(world)

    confirmed = {
        show.who()[key]
        for finding in read_between(show).findings
        if finding.kind in FOR_GOOD and finding.confirmed
        for key in finding.members
    }

    event("confirmed" if confirmed else "nothing confirmed")
    assert confirmed <= stuck(without_polls(world))


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


def gives_up(show: Show, thread: SceneThread) -> bool:
    """Whether a thread waits with a timeout and does not only poll."""
    block = show.blocks.get(thread.key)
    return thread.call is not None and block is not None and block.is_timed and not block.polls


@given(worlds(exact=True, kinds_of_block=POLLS_AND_TIMEOUTS), different)
@many
def test_loops_that_do_something_else_once_make_nobody_stuck(
    world: World, different: list[tuple[int, Callable[[SceneThread], None]]]
) -> None:
    show = Show(world)

    def differ(at: int) -> None:
        blocked = (thread for proc in show.scene.procs for thread in proc.threads if gives_up(show, thread))
        for thread, (when, change) in zip(blocked, different, strict=False):
            if when == at:
                change(thread)

    found = claimed(read_between(show, differ), show.who())

    event("some give up" if any(one.is_timed and not one.polls for one in world.blocks()) else "nobody gives up")
    event("stuck" if found else "not stuck")
    assert found <= stuck(world)


@given(worlds(exact=True, kinds_of_block=POLLS), st.integers(1, 3), st.randoms(use_true_random=False))
@many
def test_no_deadlock_rests_on_a_poll_where_the_job_made_progress(
    world: World, steps: int, order: random.Random
) -> None:
    show = Show(world)
    before = running_of(world)

    def go_on(number: int) -> None:
        if number == 4:
            world.go_on(order, steps)
            show.update()

    diagnosis = read_between(show, go_on)

    has_moved = before != running_of(world)
    polls = [vertex for vertex in diagnosis.vertices.values() if vertex.wait and vertex.wait.polls]
    event("progress" if has_moved else "no progress")
    assert not (has_moved and polls)
    confirmed = {
        show.who()[key]
        for finding in diagnosis.findings
        if finding.kind in FOR_GOOD and finding.confirmed
        for key in finding.members
    }
    assert confirmed <= stuck(without_polls(world))


def running_of(world: World) -> set[int]:
    """The works that run."""
    return {number for number, work in enumerate(world.works) if work.phase == "runs"}


# Objects inside a process


def stuck_in(world: LinkedWorld) -> set[int]:
    """Who is left when everything has happened that can."""
    world = copy.deepcopy(world)
    world.go_on(random.Random(0))
    return world.left()


def linked_without_polls(world: LinkedWorld) -> LinkedWorld:
    """The same world in which all that have timeouts give up in the end."""
    world = copy.deepcopy(world)
    for thread in world.threads:
        if thread.wait and thread.wait.timeout == "polls":
            thread.wait = replace(thread.wait, timeout="gives up")
    return world


@given(linked_worlds(), st.randoms(use_true_random=False))
@many
def test_which_thread_is_left_does_not_depend_on_the_order(world: LinkedWorld, order: random.Random) -> None:
    expected = stuck_in(world)

    world.go_on(order)

    assert world.left() == expected


@given(linked_worlds())
@many
def test_who_is_stuck_on_objects_of_its_process_is_found(world: LinkedWorld) -> None:
    show = LinkedShow(world)

    diagnosis = show.scene.sample().sample().diagnose()

    links = [vertex.key for vertex in diagnosis.vertices.values() if vertex.wait and NO_OTHERS in vertex.wait.assumed]
    found = claimed(diagnosis, show.who())
    event("stuck on an object" if any(show.who().get(key) in found for key in links) else "stuck" if found else "free")
    is_as_in(world, found)
    assert confirmed_in(diagnosis, show) <= proven_in(world)


def is_as_in(world: LinkedWorld, found: set[int]) -> None:
    """All that is stuck is found, but for what waits as idle services do, and what waits under assumptions alone."""
    active = world.with_free(world.at_rest())
    assert proven_in(world) <= found <= stuck_in(active)
    event("under assumptions alone" if active.held_by_assumptions_alone() else "all found")
    assert active.held_by_assumptions_alone() or found == stuck_in(active)


def proven_in(world: LinkedWorld) -> set[int]:
    """Who is stuck even where objects may be reached by anything else, and no loop only polls."""
    return stuck_in(world.with_free(world.suspected()))


def confirmed_in(diagnosis: Diagnosis, show: LinkedShow) -> set[int]:
    """The members of what is confirmed."""
    confirmed = (finding for finding in diagnosis.findings if finding.kind in FOR_GOOD and finding.confirmed)
    return {show.who()[key] for finding in confirmed for key in finding.members}


@given(linked_worlds(timeouts=("none", "none", "polls")))
@many
def test_who_polls_objects_of_its_process_is_found_where_all_loops_only_poll(world: LinkedWorld) -> None:
    show = LinkedShow(world)

    diagnosis = show.scene.watch(4).diagnose()

    found = claimed(diagnosis, show.who())
    event("stuck by polls" if stuck_in(world) != stuck_in(linked_without_polls(world)) else "no polls")
    is_as_in(world, found)
    assert confirmed_in(diagnosis, show) <= proven_in(world)


@given(linked_worlds(timeouts=("none", "none", "polls", "gives up")), different)
@many
def test_who_polls_objects_and_does_something_else_once_makes_nobody_stuck(
    world: LinkedWorld, different: list[tuple[int, Callable[[SceneThread], None]]]
) -> None:
    show = LinkedShow(world)
    givers = [
        number for number, thread in enumerate(world.threads) if thread.wait and thread.wait.timeout == "gives up"
    ]
    for number in range(6):
        for thread, (when, change) in zip(givers, different, strict=False):
            show.show(thread)
            if when == number:
                change(show.threads[thread])
        show.scene.read() if 0 < number < 5 else show.scene.sample()

    diagnosis = show.scene.diagnose()

    found = claimed(diagnosis, show.who())
    event("stuck" if found else "not stuck")
    assert found <= stuck_in(world)
    assert confirmed_in(diagnosis, show) <= proven_in(world)


# Process groups


def left_of(world: GroupWorld, order: random.Random) -> set[int]:
    """The ranks that never end in one continuation of the world."""
    world = copy.deepcopy(world)
    world.go_on(order)
    return world.left()


def ranks_claimed(show: GroupShow, diagnosis: Diagnosis) -> set[int]:
    """The ranks that are said never to go on; without the driver."""
    who = show.who()
    return {rank for key in said(diagnosis) if (rank := who[key]) is not None}


@given(group_worlds(), st.randoms(use_true_random=False))
@many
def test_ranks_that_are_stuck_are_found_once_nothing_moves(world: GroupWorld, order: random.Random) -> None:
    world.go_on(order)
    show = GroupShow(world)

    diagnosis = show.scene.sample().second_sample().diagnose()

    found = ranks_claimed(show, diagnosis)
    event("in doubt" if world.is_in_doubt() else "stuck" if world.left() else "not stuck")
    assert found <= world.left()
    assert world.is_in_doubt() or found == world.left()


pauses = st.lists(st.sampled_from([0, 0, 0, 1, 2]), min_size=12, max_size=12)


def after(world: GroupWorld, *ranks: int) -> GroupWorld:
    """The world in which the steps of these ranks have ended."""
    for rank in ranks:
        world.end(rank)
    return world


MEETS, ROOT = Op("all_reduce"), Op("broadcast", peer=0)
BEGUN = after(GroupWorld([(0, 1, 2)], [[MEETS], [Op("work"), MEETS], [Op("begin"), Op("call", peer=0)]]), 2)
"""Rank 2 has begun the call that rank 0 waits in, and asks that rank; only rank 1 is late."""
SENT = after(GroupWorld([(0, 1, 2)], [[ROOT, Op("call", peer=2)], [Op("work"), ROOT], [ROOT]]), 0)
"""The root has sent its data, and asks the rank to which rank 1 is to pass them on."""


@example(BEGUN, [0] * 12, random.Random(0))
@example(SENT, [0] * 12, random.Random(0))
@given(group_worlds(), pauses, st.randoms(use_true_random=False))
@many
def test_processes_read_at_different_times_make_no_rank_stuck(
    world: GroupWorld, pauses: list[int], order: random.Random
) -> None:
    world = copy.deepcopy(world)
    show = GroupShow(world)
    read_apart(show, pauses[:6], order)
    show.scene.sample()
    world.settle(order)
    at = copy.deepcopy(world)
    read_apart(show, pauses[6:], order)
    show.scene.sample()

    found = ranks_claimed(show, show.scene.diagnose())

    event("stuck" if found else "not stuck")
    for seed in range(5):
        assert found <= left_of(at, random.Random(seed))


def read_apart(show: GroupShow, pauses: list[int], order: random.Random) -> None:
    """Reads one process after the other, in any order, while the others go on."""
    several: list[int | None] = [None, *range(len(show.ranks))]
    order.shuffle(several)
    for one, steps in zip(several, pauses, strict=False):
        show.world.go_on(order, steps)
        if one is None:
            show.update_driver()
        else:
            show.update(one)
