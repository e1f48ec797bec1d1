from __future__ import annotations

import asyncio
import contextvars
import gc
import inspect
import weakref
from collections.abc import AsyncIterator, Iterator

import pytest

from dstack.spans import FINISHED, INNERMOST, KEPT, OPEN, span


@pytest.fixture(autouse=True)
def no_spans() -> Iterator[None]:
    """No span is open before and after a test."""
    FINISHED.clear()
    assert not OPEN
    yield
    assert not OPEN
    assert INNERMOST.get() is None


def chain() -> list[str]:
    """The names of the open spans in this context, the outermost first."""
    names: list[str] = []
    one = INNERMOST.get()
    while one is not None:
        names.insert(0, one.name)
        one = one.outer
    return names


def finished() -> list[str]:
    return [name for name, *_ in FINISHED]


def test_spans_are_nested_and_end_with_their_blocks() -> None:
    with span("outer"):
        with span("inner"):
            assert chain() == [one.name for one in OPEN] == ["outer", "inner"]
        assert chain() == ["outer"]

    assert finished() == ["inner", "outer"]
    (_, began, ended, thread), (_, outer_began, outer_ended, _) = FINISHED
    assert outer_began <= began <= ended <= outer_ended
    assert thread


def test_a_span_ends_with_an_exception_that_it_passes_on() -> None:
    with pytest.raises(KeyError), span("failing"):
        raise KeyError

    assert finished() == ["failing"]


def test_a_function_is_a_span_in_each_call() -> None:
    @span("work")
    def work(depth: int, *, by: int = 1) -> list[str]:
        """Its own docstring."""
        return work(depth - by) if depth else chain()

    assert work(2, by=1) == ["work"] * 3
    assert (work.__name__, work.__doc__) == ("work", "Its own docstring.")
    assert finished() == ["work"] * 3


def test_an_async_function_is_a_span_until_it_ends() -> None:
    @span("work")
    async def work() -> list[str]:
        await asyncio.sleep(0)
        return chain()

    assert inspect.iscoroutinefunction(work)
    assert asyncio.run(work()) == ["work"]
    assert finished() == ["work"]


def test_generator_functions_stay_as_they_are() -> None:
    def numbers() -> Iterator[int]:
        yield 1

    async def later() -> AsyncIterator[int]:
        yield 1

    assert span("numbers")(numbers) is numbers
    assert span("later")(later) is later


def test_tasks_have_the_spans_in_which_they_were_created_and_their_own() -> None:
    seen: dict[str, list[str]] = {}

    async def work(name: str, begun: asyncio.Event, go_on: asyncio.Event) -> None:
        with span(name):
            begun.set()
            await go_on.wait()
            seen[name] = chain()

    async def main() -> None:
        begun, go_on = asyncio.Event(), asyncio.Event()
        with span("creating"):
            tasks = [asyncio.create_task(work(name, begun, go_on)) for name in ("left", "right")]
            await begun.wait()
            assert chain() == ["creating"]
        go_on.set()
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert seen == {"left": ["creating", "left"], "right": ["creating", "right"]}


def test_a_generator_may_leave_a_span_in_another_context() -> None:
    def numbers() -> Iterator[int]:
        with span("numbers"):
            yield 1

    generator = numbers()
    contextvars.copy_context().run(next, generator)
    assert [one.name for one in OPEN] == ["numbers"]

    assert list(generator) == []
    assert chain() == []


def test_tasks_that_create_each_other_keep_no_spans_that_have_ended() -> None:
    references: list[weakref.ref[object]] = []

    class Watched(span):
        __slots__ = ("__weakref__",)

    async def work(left: int) -> None:
        with Watched("work") as _:
            one = INNERMOST.get()
            assert one is not None
            references.append(weakref.ref(one))
            del one
            if left:
                following = asyncio.create_task(work(left - 1))
                await asyncio.sleep(0)
                assert len(chain()) <= 2
        if left:
            await following

    asyncio.run(work(20))
    gc.collect()
    assert not [one for one in references if one() is not None]


def test_a_process_keeps_the_last_spans() -> None:
    for number in range(KEPT + 10):
        with span(f"{number}"):
            pass

    assert finished() == [f"{number}" for number in range(10, KEPT + 10)]
