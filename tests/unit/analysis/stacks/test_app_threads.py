from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dstack.analysis.stacks.app_threads import span_step, with_spans
from dstack.model.profile import PathStep
from dstack.observed.processes import Span

STEPS = [(index, PathStep(f"f{index}", "train.py", 1, f"f{index}")) for index in (5, 3, 2, 0)]


def path(*spans: tuple[str, int | None]) -> list[str]:
    opened = [Span(name=name, began_at=0.0, frame=frame) for name, frame in spans]
    return [step.name for step in with_spans(STEPS, opened)]


def test_a_span_is_above_the_frame_that_has_entered_it() -> None:
    assert path(("a", 3), ("b", 3), ("c", 0)) == ["f5", 'span "a"', 'span "b"', "f3", "f2", 'span "c"', "f0"]


def test_a_span_in_frames_that_are_not_shown_is_above_the_next_frame() -> None:
    assert path(("a", 9), ("b", 4)) == ['span "a"', "f5", 'span "b"', "f3", "f2", "f0"]


def test_a_span_of_an_unknown_frame_is_beside_the_one_around_it() -> None:
    assert path(("a", None)) == ['span "a"', "f5", "f3", "f2", "f0"]
    assert path(("a", 2), ("b", None)) == ["f5", "f3", 'span "a"', 'span "b"', "f2", "f0"]


@given(st.lists(st.none() | st.integers(0, 9), max_size=6))
def test_each_span_is_there_once_and_in_order(frames: list[int | None]) -> None:
    spans = [Span(name=f"{at}", began_at=0.0, frame=frame) for at, frame in enumerate(frames)]

    found = list(with_spans(STEPS[:2], spans))

    assert [step for step in found if step.is_frame] == [step for _, step in STEPS[:2]]
    assert [step for step in found if not step.is_frame] == [span_step(span.name) for span in spans]
