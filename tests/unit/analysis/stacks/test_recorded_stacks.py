"""The samples of a recording as stacks: groups, whole stacks, and functions instead of lines."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dstack.analysis.stacks.recorded_stacks import by_function, recorded_stacks
from dstack.analysis.stacks.weighted_stacks import WeightedStacks
from tests.unit.analysis.stacks.recordings import frame, recording, thread

LOOP = (frame("ray_main_loop"), frame("train", 5), frame("step", 10))
FETCH = (frame("ray_main_loop"), frame("train", 6), frame("fetch", 20), frame("ray_get"))
IDLE = (frame("ray_main_loop"), frame("ray_wait"))


def rows(stacks: WeightedStacks) -> dict[tuple[str, ...], int]:
    return {(*one.groups, *(f"{step.name}:{step.line}" for step in one.frames)): one.weight for one in stacks.stacks}


def test_samples_are_below_node_class_and_rank() -> None:
    stacks = recorded_stacks(
        recording({(thread(0), LOOP): 30, (thread(1), FETCH): 70, (thread(None, "driver x"), LOOP): 5})
    )

    assert stacks.unit == "samples"
    assert rows(stacks) == {
        ("node 10.0.0.1", "actor Trainer", "rank 0", "ray_main_loop:1", "train:5", "step:10"): 30,
        ("node 10.0.0.1", "actor Trainer", "rank 1", "ray_main_loop:1", "train:6", "fetch:20", "ray_get:1"): 70,
        ("node 10.0.0.1", "driver x", "ray_main_loop:1", "train:5", "step:10"): 5,
    }


def test_stacks_begin_at_the_first_frame_of_the_application() -> None:
    one = recording({(thread(0), FETCH): 7, (thread(1), IDLE): 2})

    assert rows(recorded_stacks(one, (), whole=False)) == {
        ("train:6", "fetch:20", "ray_get:1"): 7,
        ("ray_main_loop:1", "ray_wait:1"): 2,
    }


def test_only_samples_that_ran() -> None:
    one = recording({(thread(0), LOOP): 7, (thread(0), FETCH): -2})

    assert recorded_stacks(one).weight == 9
    assert recorded_stacks(one, only_running=True).weight == 7


def test_threads_without_a_rank_are_a_group_of_their_own() -> None:
    one = recording({(thread(0), LOOP): 1, (thread(None, "driver x"), LOOP): 2})

    assert Counter({stack.groups: stack.weight for stack in recorded_stacks(one, ("rank",)).stacks}) == {
        ("rank 0",): 1,
        ("no rank",): 2,
    }
    names = {recorded_stacks(one, (by,)).stacks[0].groups[0] for by in ("process", "thread", "job")}
    assert names == {"actor Trainer (pid 100, node 10.0.0.1)", 'thread "MainThread"', "no job"}


def test_two_recordings_are_compared_by_functions() -> None:
    moved = (frame("ray_main_loop"), frame("train", 8), frame("step", 11))
    now, before = (
        recorded_stacks(recording({(thread(0), LOOP): 3, (thread(0), moved): 4}), ()),
        recorded_stacks(recording({(thread(0), moved): 5}), ()),
    )

    assert [rows(one) for one in by_function(now, before)] == [
        {("ray_main_loop:1", "train:5", "step:10"): 7},
        {("ray_main_loop:1", "train:5", "step:10"): 5},
    ]


@given(
    st.dictionaries(
        st.tuples(st.integers(0, 3), st.sampled_from([LOOP, FETCH, IDLE])), st.integers(1, 50), min_size=1, max_size=8
    ),
    st.booleans(),
)
def test_no_sample_is_lost(drawn: dict[tuple[int, tuple[object, ...]], int], whole: bool) -> None:
    one = recording({(thread(rank), stack): count for (rank, stack), count in drawn.items()})  # type: ignore[misc]

    stacks = recorded_stacks(one, whole=whole)

    assert stacks.weight == sum(drawn.values())
    assert by_function(stacks)[0].weight == stacks.weight
