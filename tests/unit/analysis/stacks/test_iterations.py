"""The iterations of a loop, recognised from lines in time; random loops whose iterations are known."""

from __future__ import annotations

from random import Random

import pytest

from dstack.analysis.stacks.iterations import iterations_of
from dstack.files.sampled_file import PROFILES
from dstack.model.profile import PathStep, RootTime
from tests.fuzzing.effort import tries
from tests.paths import RECORDED_PROFILE
from tests.unit.analysis.stacks.made_profiles import GET, ON_CPU, QUEUE, SCORE, SLEEP, in_turn, line, profile_of

REWARD = (SCORE, line(9, "Reward.model"), SLEEP)


def step(reward_s: float, update_s: float = 1.0) -> list[tuple[float, tuple[PathStep, ...]]]:
    """One iteration: half of the reward is waited for in a queue."""
    return [
        (reward_s / 2, (line(25), GET, *REWARD)),
        (reward_s / 2, (line(25), GET, QUEUE, *REWARD)),
        (update_s, (line(26), line(40, "update"), ON_CPU)),
    ]


def test_an_iteration_begins_where_the_lines_come_back() -> None:
    turns = [(5.0, (line(3), ON_CPU)), *step(2), *step(2), *step(4), *step(2), *step(2)]
    (found,) = iterations_of(profile_of(in_turn(*turns)))

    assert found.place == line(25)
    assert found.last_line == 26
    assert [one.length_us for one in found.each] == [3_000_000, 5_000_000, 3_000_000]
    assert found.median_us == 3_000_000
    assert found.long == (1,)
    assert [(one.end, one.long_us, one.others_us) for one in found.extra] == [(REWARD, 4_000_000.0, 2_000_000.0)]


def test_iterations_that_are_alike_have_no_long_ones_with_more() -> None:
    (found,) = iterations_of(profile_of(in_turn(*step(2) * 6)))

    assert [one.length_us for one in found.each] == [3_000_000] * 4
    assert (len(found.long), found.extra) == (1, ())


def test_fewer_than_three_whole_iterations_are_none() -> None:
    assert iterations_of(profile_of(in_turn(*step(2) * 4))) == []
    assert iterations_of(profile_of(in_turn((5, (line(25), GET, SLEEP))))) == []
    assert iterations_of(profile_of([])) == []


def test_the_loop_of_an_outer_function_counts() -> None:
    main = [line(7, "<module>"), line(9, "<module>")]
    turns = [(1.0, (main[at // 4 % 2], line(20 + at % 2), ON_CPU)) for at in range(40)]
    (found,) = iterations_of(profile_of(in_turn(*turns)))

    assert found.place == main[0]
    assert {one.length_us for one in found.each} == {8_000_000}


def test_calls_of_an_actor_are_iterations() -> None:
    turns = [(1.0, (PathStep("Trainer.step"), line(20 + at % 3, "Trainer.step"), ON_CPU)) for at in range(18)]
    (found,) = iterations_of(profile_of(in_turn(*turns, root="actor Trainer")))

    assert (found.root, found.place) == ("actor Trainer", line(20, "Trainer.step"))
    assert {one.length_us for one in found.each} == {3_000_000}


def test_a_root_at_several_places_at_once_has_no_order() -> None:
    turns = in_turn(*step(2) * 6)
    beside = [RootTime(one.root, (line(99), SLEEP), one.began_us, one.lasted_us, one.weight_us) for one in turns]

    assert iterations_of(profile_of(sorted([*turns, *beside], key=lambda one: one.began_us))) == []
    whole_us = sum(one.lasted_us for one in turns)
    for_all = RootTime(turns[0].root, (line(99), SLEEP), 0, whole_us, whole_us)
    assert iterations_of(profile_of([for_all, *turns])) == []


def test_a_loop_on_one_line_has_an_iteration_for_each_of_its_waits() -> None:
    """The first and the last wait may be of other iterations; a wait is in two samples on different paths."""
    at_reward, at_queue = (line(25), GET, *REWARD), (line(25), GET, QUEUE, *REWARD)
    looped = [(2.0, at_reward), (3.0, at_reward), (0.5, at_queue), (6.0, at_reward), (2.0, at_reward), (2.0, at_reward)]
    turns = in_turn((4.0, (line(3), ON_CPU)), *looped, (9.0, (line(30), SLEEP)))
    numbered = [one._replace(nth_wait=at) for one, at in zip(turns, (0, 1, 2, 2, 3, 4, 5, 5), strict=True)]
    (found,) = iterations_of(profile_of(numbered))

    assert (found.place, found.last_line) == (line(25), 25)
    assert [one.length_us for one in found.each] == [3_500_000, 6_000_000, 2_000_000]
    assert found.long == (1,)
    assert iterations_of(profile_of(turns)) == []


def test_the_steps_of_a_real_training_loop() -> None:
    """Recorded with 4.5 samples a second on a busy machine; each fourth step saves."""
    (found,) = iterations_of(PROFILES.load(RECORDED_PROFILE))

    assert (found.place.function, found.place.line, found.last_line) == ("train", 48, 51)
    assert len(found.each) == 21
    assert sorted(found.long) == [2, 5, 9, 13, 17]
    assert found.extra[0].end[1].function == "Trainer.save"
    assert found.extra[0].long_us > 1_300_000
    assert found.extra[0].others_us < 100_000


@pytest.mark.parametrize("seed", range(tries(200)))
def test_random_loops_have_their_iterations(seed: int) -> None:
    """The first line is sometimes too short to be sampled; an inner loop comes back more often, but not so far."""
    random = Random(seed)
    has_inner = random.random() < 0.5
    turns: list[tuple[float, tuple[PathStep, ...]]] = []
    lengths: list[int] = []
    for _ in range(random.randrange(10, 30)):
        is_missed = random.random() < 0.1 and not has_inner
        own = [(random.randrange(1, 9), number) for number in (10, 12)[is_missed:]]
        inner = [(random.randrange(1, 5), 14 + at % 2) for at in range(2 * random.randrange(3, 6) * has_inner)]
        whole = [*own, *inner, (random.randrange(1, 20), 20)]
        lengths.append(1_000_000 * sum(seconds for seconds, _ in whole))
        turns += [(seconds, (line(number), SLEEP)) for seconds, number in whole]
    (found,) = iterations_of(profile_of(in_turn((1, (line(2), ON_CPU)), *turns)))

    assert [one.length_us for one in found.each] == lengths[1:-1]
    assert found.longest.length_us == max(lengths[1:-1])
