"""Spans that a program marks in its tasks, which dstack reads from its memory.

Importing it loads nothing that a program of Ray has not loaded. Entering and leaving a span takes two readings of the
clock, and neither sends, locks nor starts anything.
"""

from __future__ import annotations

from _thread import get_ident
from collections import deque
from contextvars import ContextVar
from time import perf_counter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    Function = TypeVar("Function", bound=Callable[..., Any])

KEPT = 1024
"""How many finished spans a process keeps: the last ones."""
OPEN: dict[span, None] = {}
"""The open spans of all threads and asyncio tasks."""
FINISHED: deque[tuple[str, float, float, int]] = deque(maxlen=KEPT)
"""Name, begin and end by ``time.perf_counter``, and ``threading.get_ident``, in the order of the ends."""
INNERMOST: ContextVar[span | None] = ContextVar("dstack.span", default=None)
"""The span that was entered last in this thread or asyncio task, or in the one that created it."""
_keep, _innermost, _enter = FINISHED.append, INNERMOST.get, INNERMOST.set


class span:
    """A named part of a task: ``with dstack.span("prefill"):``, or ``@dstack.span("prefill")`` for a function.

    dstack shows open spans in stacks, and the last 1,024 finished ones of each process in the history of its tasks. An
    async function is a span from its first step to its end; a generator function stays as it is. Each ``with`` needs a
    span of its own.
    """

    __slots__ = ("began", "is_open", "name", "outer", "thread")

    began: float
    is_open: bool
    outer: span | None
    thread: int

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        outer = _innermost()
        self.outer = outer if outer is None or outer.is_open else _open(outer)
        self.thread = get_ident()
        self.is_open = True
        OPEN[self] = None
        _enter(self)
        self.began = perf_counter()

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        _keep((self.name, self.began, perf_counter(), self.thread))
        self.is_open = False
        OPEN.pop(self, None)
        outer = self.outer
        if outer is not None and not outer.is_open:
            outer = self.outer = _open(outer)
        _enter(outer)  # not by a token: a generator may leave a span in another context than it has entered it in

    def __call__(self, function: Function) -> Function:
        """The function with each of its calls in a span of this name."""
        from functools import wraps
        from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction

        name, in_span = self.name, function
        if iscoroutinefunction(function):

            @wraps(function)
            async def in_span(*args: Any, **kwargs: Any) -> Any:
                with span(name):
                    return await function(*args, **kwargs)

        elif not isgeneratorfunction(function) and not isasyncgenfunction(function):

            @wraps(function)
            def in_span(*args: Any, **kwargs: Any) -> Any:
                with span(name):
                    return function(*args, **kwargs)

        return in_span


def _open(one: span | None) -> span | None:
    """The innermost of a span and those outside of it that is still open: chains keep no spans that have ended."""
    while one is not None and not one.is_open:
        one = one.outer
    return one
