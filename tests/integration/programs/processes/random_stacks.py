"""Threads in random chains of calls that block at their ends: random_stacks.py SEED THREADS [NUMBER_OF_LINKS]

Prints the stacks of all threads as JSON, by their names: file, name and line of each frame, leaf first, as Python
itself gives them. A chain consists of links, each of which calls ``go`` in a different way; no call ever returns.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import contextvars
import copy
import ctypes
import functools
import importlib
import itertools
import json
import operator
import os
import queue
import random
import re
import select
import sys
import threading
import time
import traceback
import weakref
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.util import spec_from_loader
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeVar, cast

Links = list[Any]
"""The remaining links of a chain, the next one last."""
Link = Callable[[Links], object]

LINKS: list[Link] = []
MAX_LINKS = 40
NAMES = ("f", "größe", "名前", "Ωmega", "_", "a" * 300)
ODD_NAMES = ("<🦆 of x>", "a.b.<locals>.c", "", " ", "[0]", "ÿ", "\u0100", "\U0010ffff")
FILES = ("<string>", "", "no_such_file.py", "/tmp/ünï/größe.py", "/tmp/文件.py", "/tmp/🦆/a b.py", "/" + "d/" * 200)
arrived = threading.Semaphore(0)


T = TypeVar("T")


class Chosen(threading.local):
    """The random choices of each thread, which are the same in every run."""

    here = random.Random()


chosen = Chosen()


def choose(among: Sequence[T]) -> T:
    return chosen.here.choice(among)


def link(made: Link) -> Link:
    """Register a link, a way to call ``go``."""
    LINKS.append(made)
    return made


def go(remaining: Links) -> object:
    return remaining.pop()(remaining) if remaining else block()


def block() -> object:
    how = choose(BLOCKS)
    arrived.release()
    return how()


def on_pipe() -> None:
    os.read(os.pipe()[0], 1)


BLOCKS: tuple[Callable[[], object], ...] = (
    lambda: threading.Event().wait(),
    lambda: queue.Queue[None]().get(),
    lambda: time.sleep(100_000),
    lambda: select.select([], [], []),
    on_pipe,
)

# Plain calls


@link
def plainly(remaining: Links) -> None:
    go(remaining)


@link
def on_several_lines(remaining: Links) -> None:
    found = [
        None,
        go(
            remaining,
        ),
        None,
    ]
    print(found)


@link
def by_lambda(remaining: Links) -> None:
    (lambda: (lambda: go(remaining))())()


@link
def in_recursion(remaining: Links) -> None:
    def deeper(left: int) -> object:
        return deeper(left - 1) if left else go(remaining)

    deeper(choose((0, 1, 10, 100)))


@link
def with_many_arguments(remaining: Links) -> None:
    def takes(*args: int, **named: int) -> object:
        return go(remaining)

    takes(*range(choose((10, 300))), **{f"a{number}": number for number in range(10)})


def decorated(function: Link) -> Link:
    @functools.wraps(function)
    def wrapper(remaining: Links) -> object:
        return function(remaining)

    return wrapper


@link
def with_decorators(remaining: Links) -> None:
    decorated(decorated(go))(remaining)


@link
def with_closures(remaining: Links) -> None:
    values = {"a": 1}

    def outer(remaining: Links) -> object:
        def inner() -> object:
            return go(remaining) if values else None

        return inner()

    outer(remaining)


# Methods that Python calls


class Special:
    """All of its special methods make the next call."""

    prefix = "special"

    def __init__(self, remaining: Links, *, now: bool = False) -> None:
        self.remaining = remaining
        if now:
            go(remaining)

    def __call__(self) -> object:
        return go(self.remaining)

    def __getattr__(self, name: str) -> object:
        return go(self.remaining)

    def __eq__(self, other: object) -> bool:
        return bool(go(self.remaining))

    def __hash__(self) -> int:
        return hash(go(self.remaining))

    def __lt__(self, other: object) -> bool:
        return bool(go(self.remaining))

    def __contains__(self, other: object) -> bool:
        return bool(go(self.remaining))

    def __iter__(self) -> Iterator[object]:
        go(self.remaining)
        return iter(())

    def __len__(self) -> int:
        go(self.remaining)
        return 0

    def __index__(self) -> int:
        go(self.remaining)
        return 0

    def __add__(self, other: object) -> object:
        return go(self.remaining)

    def __getitem__(self, key: object) -> object:
        return go(self.remaining)

    def __format__(self, spec: str) -> str:
        return str(go(self.remaining))

    def __repr__(self) -> str:
        return str(go(self.remaining))

    def __enter__(self) -> object:
        return go(self.remaining)

    def __exit__(self, *error: object) -> None:
        pass

    def __deepcopy__(self, memo: object) -> object:
        return go(self.remaining)

    def __reduce_ex__(self, protocol: object) -> Any:
        return go(self.remaining)

    @property
    def value(self) -> object:
        return go(self.remaining)

    @classmethod
    def of_class(cls, remaining: Links) -> object:
        return go(remaining)

    @staticmethod
    def of_none(remaining: Links) -> object:
        return go(remaining)


class Inherits(Special):
    def __init__(self, remaining: Links, *, now: bool = False) -> None:
        super().__init__(remaining, now=now)


def in_with(one: Special) -> None:
    with one:
        pass


SPECIAL: tuple[Callable[[Special], object], ...] = (
    lambda one: one(),
    lambda one: one.missing,
    lambda one: one == 1,
    lambda one: [1].index(one),  # type: ignore[arg-type]
    lambda one: {one},
    lambda one: sorted([one, one]),
    lambda one: min(one, one),
    lambda one: 1 in one,
    lambda one: list(one),
    lambda one: [*one],
    lambda one: len(one),
    lambda one: bool(one),
    lambda one: [0][one],
    lambda one: range(one),
    lambda one: one + 1,
    lambda one: one[0],
    lambda one: f"{one}",
    lambda one: repr(one),
    lambda one: "%r" % one,  # noqa: UP031  # the operator calls __repr__
    lambda one: copy.deepcopy([one]),
    lambda one: copy.copy({"a": one}["a"]),
    lambda one: one.value,
    lambda one: getattr(one, "value"),  # noqa: B009
    lambda one: operator.attrgetter("value")(one),
    lambda one: one.of_class(one.remaining),
    lambda one: Special.of_none(one.remaining),
    lambda one: Special(one.remaining, now=True),
    lambda one: Inherits(one.remaining, now=True),
    in_with,
)


@link
def by_special_method(remaining: Links) -> None:
    choose(SPECIAL)(choose((Special, Inherits))(remaining))


@link
def by_end_of_object(remaining: Links) -> None:
    class Ends:
        def __del__(self) -> None:
            go(remaining)

    one = Ends()
    del one


@link
def by_weak_reference(remaining: Links) -> None:
    class Ends:
        pass

    one = Ends()
    kept = weakref.ref(one, lambda _: go(remaining))
    del one
    print(kept)


@link
def in_class_body(remaining: Links) -> None:
    class Body:
        found = go(remaining)

    print(Body)


@link
def by_metaclass(remaining: Links) -> None:
    class Meta(type):
        def __call__(cls) -> object:
            return go(remaining)

    class Made(metaclass=Meta):
        pass

    Made()


@link
def by_subclass(remaining: Links) -> None:
    class Base:
        def __init_subclass__(cls) -> None:
            go(remaining)

    class Derived(Base):
        pass

    print(Derived)


@link
def by_descriptor(remaining: Links) -> None:
    class Descriptor:
        def __get__(self, one: object, kind: object) -> object:
            return go(remaining)

    class Has:
        field = Descriptor()

    print(Has().field)


@link
def by_cached_property(remaining: Links) -> None:
    class Has:  # of its own: up to CPython 3.11, a lock lets one thread at a time into a cached property
        @functools.cached_property
        def field(self) -> object:
            return go(remaining)

    print(Has().field)


@link
def by_missing_key(remaining: Links) -> None:
    values: defaultdict[str, object] = defaultdict(lambda: go(remaining))
    print(values["a"])


# Built-in functions that call Python

BUILT_IN: tuple[Callable[[Callable[..., Any]], object], ...] = (
    lambda call: sorted([1, 2], key=call),
    lambda call: [2, 1].sort(key=call),
    lambda call: max([1], key=call),
    lambda call: list(map(call, [1])),
    lambda call: list(filter(call, [1])),
    lambda call: tuple(map(call, [1], [2])),
    lambda call: functools.reduce(call, [1, 2]),
    lambda call: functools.partial(call, 1)(),
    lambda call: functools.partial(functools.partial, functools.partial(call, 1))()(),
    lambda call: functools.lru_cache(None)(call)(1),
    lambda call: functools.singledispatch(call)(1),
    lambda call: sorted([1, 2], key=functools.cmp_to_key(call)),
    lambda call: re.sub("a", call, "a"),
    lambda call: json.dumps(object(), default=call),
    lambda call: next(iter(call, 1)),
    lambda call: contextvars.copy_context().run(call),
    lambda call: ctypes.PYFUNCTYPE(ctypes.c_int)(call)(),
    lambda call: ctypes.CFUNCTYPE(ctypes.c_int)(call)(),
    lambda call: any(call(one) for one in [1]),
    lambda call: sum(call(one) for one in [1]),
    lambda call: "".join(call(one) for one in [1]),
    lambda call: dict(zip(map(call, [1]), [1], strict=False)),
    lambda call: eval("call()", {"call": call}),
    lambda call: operator.methodcaller("method")(type("T", (), {"method": call})()),
    lambda call: property(call).__get__(1),
)


@link
def by_built_in(remaining: Links) -> None:
    choose(BUILT_IN)(lambda *args: go(remaining))


# Comprehensions, generators, coroutines


@link
def in_comprehension(remaining: Links) -> None:
    ways: tuple[Callable[[], object], ...] = (
        lambda: [go(remaining) for _ in [0]],
        lambda: {go(remaining) for _ in [0]},
        lambda: {one: go(remaining) for one in [0]},
        lambda: [[go(remaining) for _ in [0]] for _ in [0]],
        lambda: [one for one in [0] if go(remaining)],
        lambda: list(go(remaining) for _ in [0]),  # noqa: C400
        lambda: [x for x in (go(remaining) for _ in [0])],  # noqa: C416
    )
    choose(ways)()


def generates(remaining: Links) -> Iterator[object]:
    yield 0
    yield go(remaining)


def passes_on(remaining: Links, left: int) -> Iterator[object]:
    yield from passes_on(remaining, left - 1) if left else generates(remaining)


def cleans_up(remaining: Links) -> Iterator[object]:
    try:
        yield None
    finally:
        go(remaining)


def catches(remaining: Links) -> Iterator[object]:
    try:
        yield None
    except ValueError:
        go(remaining)


def is_thrown_at(remaining: Links) -> None:
    one: Any = catches(remaining)
    next(one)
    one.throw(ValueError())


def is_closed(remaining: Links) -> None:
    one: Any = cleans_up(remaining)
    next(one)
    one.close()


def is_dropped(remaining: Links) -> None:
    one = cleans_up(remaining)
    next(one)
    del one


def is_iterated(remaining: Links) -> None:
    for _ in generates(remaining):
        pass


@link
def in_generator(remaining: Links) -> None:
    ways: tuple[Link, ...] = (
        lambda remaining: list(generates(remaining)),
        lambda remaining: list(passes_on(remaining, choose((0, 1, 30)))),
        is_thrown_at,
        is_closed,
        is_dropped,
        is_iterated,
    )
    choose(ways)(remaining)


@link
def in_context_manager(remaining: Links) -> None:
    @contextlib.contextmanager
    def manager() -> Iterator[None]:
        go(remaining)
        yield

    with manager():
        pass


@link
def in_exit_stack(remaining: Links) -> None:
    with contextlib.ExitStack() as stack:
        stack.callback(go, remaining)


async def calls(remaining: Links) -> object:
    return go(remaining)


async def awaits(remaining: Links, left: int) -> object:
    return await (awaits(remaining, left - 1) if left else calls(remaining))


async def generates_later(remaining: Links) -> AsyncIterator[object]:
    yield go(remaining)


async def iterates(remaining: Links) -> None:
    async for _ in generates_later(remaining):
        pass


async def collects(remaining: Links) -> object:
    return [one async for one in generates_later(remaining)]


class Enters:
    def __init__(self, remaining: Links) -> None:
        self.remaining = remaining

    async def __aenter__(self) -> object:
        return await calls(self.remaining)

    async def __aexit__(self, *error: object) -> None:
        pass


async def enters(remaining: Links) -> None:
    async with Enters(remaining):
        pass


def coroutine(remaining: Links) -> Any:
    ways: tuple[Callable[[], Any], ...] = (
        lambda: calls(remaining),
        lambda: awaits(remaining, choose((0, 1, 30))),
        lambda: iterates(remaining),
        lambda: collects(remaining),
        lambda: enters(remaining),
    )
    return choose(ways)()


@link
def in_coroutine(remaining: Links) -> None:
    coroutine(remaining).send(None)


@link
def in_event_loop(remaining: Links) -> None:
    if asyncio._get_running_loop() is not None:
        go(remaining)

    async def main() -> None:
        if chosen.here.random() < 0.3:
            asyncio.get_running_loop().call_soon(go, remaining)
            await asyncio.sleep(100_000)
        await (asyncio.create_task(coroutine(remaining)) if chosen.here.random() < 0.5 else coroutine(remaining))

    asyncio.run(main())


@link
def in_greenlet(remaining: Links) -> None:
    try:
        greenlet = importlib.import_module("greenlet")
    except ImportError:  # it is installed with the tests only
        go(remaining)
        return
    greenlet.greenlet(lambda: greenlet.greenlet(go).switch(remaining)).switch()


# Traced and profiled


@link
def traced(remaining: Links) -> None:
    def trace(frame: object, event: str, arg: object) -> Any:
        return trace

    sys.settrace(trace)
    go(remaining)


@link
def profiled(remaining: Links) -> None:
    sys.setprofile(lambda frame, event, arg: None)
    go(remaining)


@link
def in_trace_function(remaining: Links) -> None:
    def trace(frame: object, event: str, arg: object) -> Any:
        sys.settrace(None)
        go(remaining)

    def called() -> None:
        pass

    sys.settrace(trace)
    called()
    go(remaining)  # in a trace function, no other one is called


@link
def in_profile_function(remaining: Links) -> None:
    def profile(frame: object, event: str, arg: object) -> None:
        sys.setprofile(None)
        go(remaining)

    sys.setprofile(profile)
    len("")
    go(remaining)


# Errors


@link
def in_handlers(remaining: Links) -> None:
    try:
        try:
            raise ValueError
        except ValueError:
            raise KeyError from None
        finally:
            len("")
    except KeyError:
        go(remaining)


@link
def in_finally(remaining: Links) -> None:
    try:
        len("")
    finally:
        go(remaining)


# Code generated at run time


def padding() -> list[str]:
    return [choose(("", "    # ", "#"))] * choose((0, 0, 1, 5, 200))


OPENINGS = (
    ["for _ in [0]:"],
    ["while remaining is not None:"],
    ["if remaining is not None:"],
    ["with null():"],
    ["try:", "    raise ValueError", "except ValueError:"],
    ["try:", "    len('')", "finally:"],
    ["try:", "    len('')", "except ValueError:", "    pass", "else:"],
    ["match 1:", "  case 1:"],
    ["class Inner:"],
    ["def inner(remaining):", "    pass", "for _ in [0]:"],
)
CALLS = (
    "go(remaining)",
    "go(\n\n\nremaining)",
    "x = [1,\n\n2, go(remaining)]",
    "x = [go(remaining) for _ in [0]]",
    "x = {go(remaining):\n 1}",
    "x = f'{go(remaining)}'",
    "assert go(remaining)",
    "(lambda:\n\n go(remaining))()",
    "x = 1 if go(remaining) else 2",
    "x = 1 < 2 < go(remaining)",
    "x, *y = go(remaining)",
    "del null.__dict__[go(remaining)]",
    "global z; z = go(remaining)",
    "print(1,\n go(\nremaining\n),\n 2)",
    "x = (1 +\n go(remaining)\n + 2)",
    "raise ValueError(go(remaining))",
    "import os.path; go(remaining)",
    "def later(x=go(remaining)): pass",
    "x = not go(remaining) and 1",
)


def source() -> str:
    """A module that calls ``go`` somewhere within random blocks, between random empty lines."""
    lines, indent = padding(), ""
    for _ in range(chosen.here.randrange(6)):
        opening = choose(OPENINGS)
        lines += [indent + one for one in opening] + padding()
        indent += "    "
    call = choose(CALLS).split("\n")
    return "\n".join([*lines, indent + call[0], *call[1:]])


def compiled() -> CodeType:
    return compile(source(), choose(FILES), "exec")


def shuffled() -> CodeType:
    """The same with unordered lines, far from each other."""
    tree = ast.parse(source())
    for node in cast(Iterator[Any], ast.walk(tree)):
        if hasattr(node, "lineno"):
            node.lineno = node.end_lineno = choose((1, 2, 300, 40_000, 70_000, 1_000_000))
            node.col_offset, node.end_col_offset = 0, 1
    return compile(tree, choose(FILES), "exec")


@link
def in_compiled_code(remaining: Links) -> None:
    exec(choose((compiled, shuffled))(), {"go": go, "remaining": remaining, "null": contextlib.nullcontext})


@link
def under_odd_name(remaining: Links) -> None:
    names = {"co_name": choose((*NAMES, *ODD_NAMES)), "co_filename": choose(FILES)}
    if sys.version_info >= (3, 11):
        names["co_qualname"] = choose((*NAMES, *ODD_NAMES))
    made: Any = FunctionType(go.__code__.replace(**names), globals())  # type: ignore[arg-type]
    made([*remaining, plainly]) if chosen.here.random() < 0.1 else made(remaining)


@link
def in_imported_module(remaining: Links) -> None:
    name = f"imported_{next(NUMBERS)}"
    IMPORTED[name] = remaining
    importlib.import_module(name)


NUMBERS = itertools.count()
IMPORTED: dict[str, Links] = {}


class Importer(MetaPathFinder, Loader):
    """Import modules that make the next call when they are executed."""

    def find_spec(self, name: str, path: object, target: object = None) -> Any:
        return spec_from_loader(name, self) if name in IMPORTED else None

    def exec_module(self, module: ModuleType) -> None:
        go(IMPORTED[module.__name__])


# The program


def run(seed: str, count: int) -> None:
    chosen.here = random.Random(seed)
    go(chosen.here.choices(LINKS, k=count))


def marks(threads: list[threading.Thread]) -> list[str]:
    """The scheduler's counters of threads, which change whenever a thread runs."""
    return [Path(f"/proc/self/task/{one.native_id}/schedstat").read_text() for one in threads]


def stacks(threads: list[threading.Thread]) -> dict[str, list[tuple[str, str, int]]]:
    frames: dict[int, Any] = sys._current_frames()
    return {one.name: list(frames_of(frames[one.ident or 0])) for one in threads}


def frames_of(frame: Any) -> Iterator[tuple[str, str, int]]:
    while frame:
        code = frame.f_code
        yield code.co_filename, getattr(code, "co_qualname", code.co_name), frame.f_lineno or 0
        frame = frame.f_back


def end(error: BaseException | None) -> None:
    traceback.print_exception(error)
    os._exit(1)


def main(seed: str, count: int, most: int = MAX_LINKS) -> None:
    sys.setrecursionlimit(20_000)
    sys.meta_path.insert(0, Importer())
    threading.excepthook = lambda error: end(error.exc_value)
    sys.unraisablehook = lambda error: end(error.exc_value)
    chooser = random.Random(seed)
    threads = []
    for number in range(count):
        arguments = f"{seed} {number}", chooser.randrange(most)
        threads.append(threading.Thread(target=run, args=arguments, name=f"t-{number}", daemon=True))
        threads[-1].start()
    for _ in threads:
        arrived.acquire()
    while True:
        before = marks(threads)
        time.sleep(0.1)
        found = stacks(threads)
        if marks(threads) == before:
            break
    print("stacks", json.dumps(found))
    print("ready", flush=True)
    time.sleep(100_000)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
