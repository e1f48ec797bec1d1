from typing import get_args

import pytest

from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming.sentences import PREDICATES, sentence
from dstack.model.diagnosis import WaitKind
from tests.unit.scenes import Scene


def test_each_kind_of_wait_has_a_predicate() -> None:
    assert set(PREDICATES) == set(get_args(WaitKind))


@pytest.mark.parametrize(
    ("needed", "words"),
    [(1, "1 of 3: a, b or c"), (2, "2 of 3: a, b, c"), (3, "a, b and c")],
)
def test_the_word_between_targets_says_how_many_are_needed(needed: int, words: str) -> None:
    scene = Scene()
    driver = scene.driver()
    driver.waits(*(scene.run(name, by=driver)[0] for name in "abc"), num_returns=needed)

    graph = scene.graph()
    snapshot = scene.snapshot()
    step = sentence(SampleIndex(snapshot, snapshot.samples[0]), graph, graph[driver.key])

    assert step.text.endswith(f"waits in ray.wait for {words}")
