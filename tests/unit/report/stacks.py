"""Random weighted stacks, also with names that are hostile to a format."""

from __future__ import annotations

from hypothesis import strategies as st

from dstack.analysis.stacks.weighted_stacks import WeightedStack, WeightedStacks
from dstack.model.profile import PathStep

NAMES = st.one_of(
    st.text(max_size=8),
    st.sampled_from(["step", "a;b", "a b 3", "7", " ", "", "two\nlines 4", "\r", "\x1b[31m", "\ud800", '"}', "rank 3"]),
)
STEPS = st.builds(PathStep, NAMES, NAMES, st.integers(0, 2**31), st.just("f"))
STACK = st.builds(
    WeightedStack,
    st.lists(NAMES, max_size=3).map(tuple),
    st.lists(STEPS, max_size=4).map(tuple),
    st.integers(0, 10**15),
)
STACKS = st.builds(
    WeightedStacks,
    NAMES,
    st.sampled_from(["executions", "samples", "microseconds"]),
    st.lists(STACK, max_size=6).map(tuple),
)
TRAIN = PathStep("train", "app/train.py", 12, "train")
GET = PathStep("ray.get", "ray/worker.py", 40, "get")
TWO_RANKS = WeightedStacks(
    "cluster",
    "samples",
    (
        WeightedStack(("actor Trainer", "rank 0"), (TRAIN, GET), 3),
        WeightedStack(("actor Trainer", "rank 1"), (TRAIN,), 5),
    ),
)
