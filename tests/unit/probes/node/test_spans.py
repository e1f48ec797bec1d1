"""Whatever the memory of a program has in place of its spans, they are read or left out."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from dstack.probes.node.cpython.memory import ProcessMemory, UnreadableMemory
from dstack.probes.node.spans import Spans
from dstack.spans import FINISHED, OPEN, span
from tests.fuzzing.effort import examples
from tests.unit.support.hostile_memory import HOSTILE, Change, Copied, Recorder, ends_well
from tests.unit.support.own_process import own_process
from tests.versions.calibration import WaitingThread

AHEAD_S = 1.7e9


@dataclass(frozen=True)
class Copy:
    """The recorded pages of this process, and the spans that were read from it."""

    pages: dict[int, bytes]
    touched: list[int]
    found: tuple[object, object]


def spans_in(memory: ProcessMemory) -> tuple[object, object]:
    """The names of the open spans by thread, and the finished spans."""
    process = own_process(memory)
    spans = Spans(process, AHEAD_S)
    by_thread = {one.thread_id: [each.name for each in spans.of_thread(one)] for one in process.threads}
    return by_thread, spans.finished(process.threads)


@pytest.fixture(scope="module")
def copy() -> Iterator[Copy]:
    """Two open spans of a thread and three finished ones, read once."""
    with WaitingThread() as specimen:
        specimen.frame()
        FINISHED.clear()
        for name in ("first", "second", "third"):
            with span(name):
                pass
        contextvars.copy_context().run(enter)
        recorder = Recorder()
        found = spans_in(recorder)
        recorder.close()
        yield Copy(recorder.pages, sorted(recorder.touched), found)
        OPEN.clear()


def enter() -> None:
    """Enter two spans for ever."""
    for name in ("outer", "inner"):
        span(name).__enter__()


def test_spans_of_this_process(copy: Copy) -> None:
    by_thread, finished = copy.found

    assert by_thread[threading.get_ident()] == ["outer", "inner"]  # type: ignore[index]
    assert [one.name for one in finished] == ["first", "second", "third"]  # type: ignore[attr-defined]


@examples(200, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_changed_memory_has_other_spans_or_none(copy: Copy, data: st.DataObject) -> None:
    touched = st.sampled_from(copy.touched)
    value = st.one_of(st.none(), st.sampled_from(HOSTILE), touched, st.integers(0, 2**64 - 1))
    changes = st.lists(st.builds(Change, touched, st.sampled_from([0, 0, 3, 10, 30]), value), min_size=1, max_size=6)
    memory = Copied(copy.pages, data.draw(changes))

    ends_well(memory, lambda: spans_in(memory))


class Wrong:
    """A span by its name only."""


Wrong.__name__ = Wrong.__qualname__ = "span"


@pytest.mark.parametrize("wrong", [Wrong(), "text", 7, None], ids=["of its name", "text", "int", "None"])
def test_what_is_no_span_is_left_out(wrong: object) -> None:
    before = dict(OPEN)
    OPEN[wrong] = None  # type: ignore[index]
    FINISHED.append((wrong, 1.0, 2.0, 3) if wrong != "text" else (wrong, 2.0, 1.0, 3))  # type: ignore[arg-type]
    try:
        memory = Recorder()
        by_thread, finished = spans_in(memory)
        memory.close()
    except UnreadableMemory as error:
        pytest.fail(str(error))
    finally:
        FINISHED.pop()
        OPEN.clear()
        OPEN.update(before)

    names = [name for names in by_thread.values() for name in names]  # type: ignore[attr-defined]
    assert set(names) <= {"outer", "inner"}
    assert [one.name for one in finished] == [name for name, *_ in FINISHED]  # type: ignore[attr-defined]
