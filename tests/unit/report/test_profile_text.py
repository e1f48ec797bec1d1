"""What a profile prints."""

from __future__ import annotations

from io import StringIO

from msgspec.structs import replace
from rich.console import Console

from dstack.model.profile import Endpoint, ExecutedCalls, Traffic
from dstack.report.profile_text import print_profile
from dstack.report.rich_text import plain_text
from tests.unit.analysis.stacks.made_profiles import ON_CPU, in_turn, line, profile_of
from tests.unit.analysis.stacks.test_iterations import step


def text_of(*seconds: float) -> str:
    console = Console(file=StringIO(), width=200, record=True)
    turns = [each for one in seconds for each in step(one)]
    print_profile(console, profile_of(in_turn(*turns)))
    return console.export_text()


def test_the_steps_of_a_loop_follow_the_chains() -> None:
    text = text_of(2, 2, 2, 8, 2, 2)

    assert " 1.  75.0 %  18 s  Reward.score → Reward.model (train.py:9) → time.sleep" in text
    chains, _, steps = text.partition("Steps: ")
    assert "from driver train.py → main (train.py:25) → ray.get" in chains
    assert steps.splitlines() == [
        "4 iterations of main (train.py:25-26) in driver train.py: median 3.0 s, longest 9.0 s, 9.0 s after the begin",
        "    The longest one had 8.0 s instead of 2.0 s in Reward.score → Reward.model (train.py:9) → time.sleep",
    ]


def test_without_a_loop_there_are_no_steps() -> None:
    assert "Steps" not in text_of(2, 2)


MIB = 1 << 20
LOAD, STEP = Endpoint("actor", "Loader", "load"), Endpoint("actor", "Trainer", "step")
DRIVER, PREPARE = Endpoint("driver", "train.py"), Endpoint("function", "prepare")


def test_the_heaviest_objects_and_the_most_frequent_calls_are_printed_as_lower_bounds() -> None:
    profile = replace(
        profile_of(in_turn((1, (line(5), ON_CPU)))),
        traffic=(
            Traffic(STEP, DRIVER, 400, MIB - 1),
            Traffic(PREPARE, STEP, 1, MIB),
            Traffic(LOAD, STEP, 340, 1234 * MIB),
            Traffic(DRIVER, PREPARE, 2, 4 * MIB),
            Traffic(Endpoint("actor", "Loader"), DRIVER, 2, 3 * MIB),
        ),
        executed=(ExecutedCalls(Endpoint("function"), 1), ExecutedCalls(Endpoint("actor", "Loader"), 1200)),
    )

    assert plain_text(lambda console: print_profile(console, profile), 80).splitlines()[-4:] == [
        "Data: at least 1.2 GiB in 340 objects from Loader.load to Trainer.step",
        "Data: at least 4.0 MiB in 2 objects from driver train.py to prepare",
        "Data: at least 3.0 MiB in 2 objects from Loader to driver train.py",
        "Calls executed: at least 1,200 of Loader and 1 of functions",
    ]
