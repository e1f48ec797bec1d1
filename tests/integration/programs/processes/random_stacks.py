"""Threads in random chains of calls that block at their ends: random_stacks.py SEED THREADS [NUMBER_OF_LINKS]

Prints as JSON where each thread is, by its name: file, name and line of its frames, leaf first, as Python itself says.
A chain is made of links, each of which calls ``go`` in another way; none of these calls ever returns.
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

Rest = list[Any]
"""The links of a chain that are still to come, the next one last."""
Link = Callable[[Rest], object]

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
    """Add a way to call ``go``."""
    LINKS.append(made)
    return made


def go(rest: Rest) -> object:
    return rest.pop()(rest) if rest else block()


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
def plainly(rest: Rest) -> None:
    go(rest)


@link
def on_several_lines(rest: Rest) -> None:
    found = [
        None,
        go(
            rest,
        ),
        None,
    ]
    print(found)


@link
def by_lambda(rest: Rest) -> None:
    (lambda: (lambda: go(rest))())()


@link
def in_recursion(rest: Rest) -> None:
    def deeper(left: int) -> object:
        return deeper(left - 1) if left else go(rest)

    deeper(choose((0, 1, 10, 100)))


@link
def with_many_arguments(rest: Rest) -> None:
    def takes(*args: int, **named: int) -> object:
        return go(rest)

    takes(*range(choose((10, 300))), **{f"a{number}": number for number in range(10)})


def decorated(function: Link) -> Link:
    @functools.wraps(function)
    def wrapper(rest: Rest) -> object:
        return function(rest)

    return wrapper


@link
def with_decorators(rest: Rest) -> None:
    decorated(decorated(go))(rest)


@link
def with_closures(rest: Rest) -> None:
    values = {"a": 1}

    def outer(rest: Rest) -> object:
        def inner() -> object:
            return go(rest) if values else None

        return inner()

    outer(rest)


# Methods that Python calls


class Special:
    """All of its special methods make the next call."""

    prefix = "special"

    def __init__(self, rest: Rest, *, now: bool = False) -> None:
        self.rest = rest
        if now:
            go(rest)

    def __call__(self) -> object:
        return go(self.rest)

    def __getattr__(self, name: str) -> object:
        return go(self.rest)

    def __eq__(self, other: object) -> bool:
        return bool(go(self.rest))

    def __hash__(self) -> int:
        return hash(go(self.rest))

    def __lt__(self, other: object) -> bool:
        return bool(go(self.rest))

    def __contains__(self, other: object) -> bool:
        return bool(go(self.rest))

    def __iter__(self) -> Iterator[object]:
        go(self.rest)
        return iter(())

    def __len__(self) -> int:
        go(self.rest)
        return 0

    def __index__(self) -> int:
        go(self.rest)
        return 0

    def __add__(self, other: object) -> object:
        return go(self.rest)

    def __getitem__(self, key: object) -> object:
        return go(self.rest)

    def __format__(self, spec: str) -> str:
        return str(go(self.rest))

    def __repr__(self) -> str:
        return str(go(self.rest))

    def __enter__(self) -> object:
        return go(self.rest)

    def __exit__(self, *error: object) -> None:
        pass

    def __deepcopy__(self, memo: object) -> object:
        return go(self.rest)

    def __reduce_ex__(self, protocol: object) -> Any:
        return go(self.rest)

    @property
    def value(self) -> object:
        return go(self.rest)

    @classmethod
    def of_class(cls, rest: Rest) -> object:
        return go(rest)

    @staticmethod
    def of_none(rest: Rest) -> object:
        return go(rest)


class Inherits(Special):
    def __init__(self, rest: Rest, *, now: bool = False) -> None:
        super().__init__(rest, now=now)


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
    lambda one: one.of_class(one.rest),
    lambda one: Special.of_none(one.rest),
    lambda one: Special(one.rest, now=True),
    lambda one: Inherits(one.rest, now=True),
    in_with,
)


@link
def by_special_method(rest: Rest) -> None:
    choose(SPECIAL)(choose((Special, Inherits))(rest))


@link
def by_end_of_object(rest: Rest) -> None:
    class Ends:
        def __del__(self) -> None:
            go(rest)

    one = Ends()
    del one


@link
def by_weak_reference(rest: Rest) -> None:
    class Ends:
        pass

    one = Ends()
    kept = weakref.ref(one, lambda _: go(rest))
    del one
    print(kept)


@link
def in_class_body(rest: Rest) -> None:
    class Body:
        found = go(rest)

    print(Body)


@link
def by_metaclass(rest: Rest) -> None:
    class Meta(type):
        def __call__(cls) -> object:
            return go(rest)

    class Made(metaclass=Meta):
        pass

    Made()


@link
def by_subclass(rest: Rest) -> None:
    class Base:
        def __init_subclass__(cls) -> None:
            go(rest)

    class Derived(Base):
        pass

    print(Derived)


@link
def by_descriptor(rest: Rest) -> None:
    class Descriptor:
        def __get__(self, one: object, kind: object) -> object:
            return go(rest)

    class Has:
        field = Descriptor()

    print(Has().field)


@link
def by_cached_property(rest: Rest) -> None:
    class Has:  # of its own: up to CPython 3.11, a lock lets one thread at a time into a cached property
        @functools.cached_property
        def field(self) -> object:
            return go(rest)

    print(Has().field)


@link
def by_missing_key(rest: Rest) -> None:
    values: defaultdict[str, object] = defaultdict(lambda: go(rest))
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
def by_built_in(rest: Rest) -> None:
    choose(BUILT_IN)(lambda *args: go(rest))


# Comprehensions, generators, coroutines


@link
def in_comprehension(rest: Rest) -> None:
    ways: tuple[Callable[[], object], ...] = (
        lambda: [go(rest) for _ in [0]],
        lambda: {go(rest) for _ in [0]},
        lambda: {one: go(rest) for one in [0]},
        lambda: [[go(rest) for _ in [0]] for _ in [0]],
        lambda: [one for one in [0] if go(rest)],
        lambda: list(go(rest) for _ in [0]),  # noqa: C400
        lambda: [x for x in (go(rest) for _ in [0])],  # noqa: C416
    )
    choose(ways)()


def generates(rest: Rest) -> Iterator[object]:
    yield 0
    yield go(rest)


def passes_on(rest: Rest, left: int) -> Iterator[object]:
    yield from passes_on(rest, left - 1) if left else generates(rest)


def cleans_up(rest: Rest) -> Iterator[object]:
    try:
        yield None
    finally:
        go(rest)


def catches(rest: Rest) -> Iterator[object]:
    try:
        yield None
    except ValueError:
        go(rest)


def is_thrown_at(rest: Rest) -> None:
    one: Any = catches(rest)
    next(one)
    one.throw(ValueError())


def is_closed(rest: Rest) -> None:
    one: Any = cleans_up(rest)
    next(one)
    one.close()


def is_dropped(rest: Rest) -> None:
    one = cleans_up(rest)
    next(one)
    del one


def is_iterated(rest: Rest) -> None:
    for _ in generates(rest):
        pass


@link
def in_generator(rest: Rest) -> None:
    ways: tuple[Link, ...] = (
        lambda rest: list(generates(rest)),
        lambda rest: list(passes_on(rest, choose((0, 1, 30)))),
        is_thrown_at,
        is_closed,
        is_dropped,
        is_iterated,
    )
    choose(ways)(rest)


@link
def in_context_manager(rest: Rest) -> None:
    @contextlib.contextmanager
    def manager() -> Iterator[None]:
        go(rest)
        yield

    with manager():
        pass


@link
def in_exit_stack(rest: Rest) -> None:
    with contextlib.ExitStack() as stack:
        stack.callback(go, rest)


async def calls(rest: Rest) -> object:
    return go(rest)


async def awaits(rest: Rest, left: int) -> object:
    return await (awaits(rest, left - 1) if left else calls(rest))


async def generates_later(rest: Rest) -> AsyncIterator[object]:
    yield go(rest)


async def iterates(rest: Rest) -> None:
    async for _ in generates_later(rest):
        pass


async def collects(rest: Rest) -> object:
    return [one async for one in generates_later(rest)]


class Enters:
    def __init__(self, rest: Rest) -> None:
        self.rest = rest

    async def __aenter__(self) -> object:
        return await calls(self.rest)

    async def __aexit__(self, *error: object) -> None:
        pass


async def enters(rest: Rest) -> None:
    async with Enters(rest):
        pass


def coroutine(rest: Rest) -> Any:
    ways: tuple[Callable[[], Any], ...] = (
        lambda: calls(rest),
        lambda: awaits(rest, choose((0, 1, 30))),
        lambda: iterates(rest),
        lambda: collects(rest),
        lambda: enters(rest),
    )
    return choose(ways)()


@link
def in_coroutine(rest: Rest) -> None:
    coroutine(rest).send(None)


@link
def in_event_loop(rest: Rest) -> None:
    if asyncio._get_running_loop() is not None:
        go(rest)

    async def main() -> None:
        if chosen.here.random() < 0.3:
            asyncio.get_running_loop().call_soon(go, rest)
            await asyncio.sleep(100_000)
        await (asyncio.create_task(coroutine(rest)) if chosen.here.random() < 0.5 else coroutine(rest))

    asyncio.run(main())


@link
def in_greenlet(rest: Rest) -> None:
    try:
        greenlet = importlib.import_module("greenlet")
    except ImportError:  # it is installed with the tests only
        go(rest)
        return
    greenlet.greenlet(lambda: greenlet.greenlet(go).switch(rest)).switch()


# Traced and profiled


@link
def traced(rest: Rest) -> None:
    def trace(frame: object, event: str, arg: object) -> Any:
        return trace

    sys.settrace(trace)
    go(rest)


@link
def profiled(rest: Rest) -> None:
    sys.setprofile(lambda frame, event, arg: None)
    go(rest)


@link
def in_trace_function(rest: Rest) -> None:
    def trace(frame: object, event: str, arg: object) -> Any:
        sys.settrace(None)
        go(rest)

    def called() -> None:
        pass

    sys.settrace(trace)
    called()
    go(rest)  # in a trace function, no other one is called


@link
def in_profile_function(rest: Rest) -> None:
    def profile(frame: object, event: str, arg: object) -> None:
        sys.setprofile(None)
        go(rest)

    sys.setprofile(profile)
    len("")
    go(rest)


# Errors


@link
def in_handlers(rest: Rest) -> None:
    try:
        try:
            raise ValueError
        except ValueError:
            raise KeyError from None
        finally:
            len("")
    except KeyError:
        go(rest)


@link
def in_finally(rest: Rest) -> None:
    try:
        len("")
    finally:
        go(rest)


# Code that is made at run time


def padding() -> list[str]:
    return [choose(("", "    # ", "#"))] * choose((0, 0, 1, 5, 200))


OPENINGS = (
    ["for _ in [0]:"],
    ["while rest is not None:"],
    ["if rest is not None:"],
    ["with null():"],
    ["try:", "    raise ValueError", "except ValueError:"],
    ["try:", "    len('')", "finally:"],
    ["try:", "    len('')", "except ValueError:", "    pass", "else:"],
    ["match 1:", "  case 1:"],
    ["class Inner:"],
    ["def inner(rest):", "    pass", "for _ in [0]:"],
)
CALLS = (
    "go(rest)",
    "go(\n\n\nrest)",
    "x = [1,\n\n2, go(rest)]",
    "x = [go(rest) for _ in [0]]",
    "x = {go(rest):\n 1}",
    "x = f'{go(rest)}'",
    "assert go(rest)",
    "(lambda:\n\n go(rest))()",
    "x = 1 if go(rest) else 2",
    "x = 1 < 2 < go(rest)",
    "x, *y = go(rest)",
    "del null.__dict__[go(rest)]",
    "global z; z = go(rest)",
    "print(1,\n go(\nrest\n),\n 2)",
    "x = (1 +\n go(rest)\n + 2)",
    "raise ValueError(go(rest))",
    "import os.path; go(rest)",
    "def later(x=go(rest)): pass",
    "x = not go(rest) and 1",
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
    """The same with lines in no order, far from each other."""
    tree = ast.parse(source())
    for node in cast(Iterator[Any], ast.walk(tree)):
        if hasattr(node, "lineno"):
            node.lineno = node.end_lineno = choose((1, 2, 300, 40_000, 70_000, 1_000_000))
            node.col_offset, node.end_col_offset = 0, 1
    return compile(tree, choose(FILES), "exec")


@link
def in_compiled_code(rest: Rest) -> None:
    exec(choose((compiled, shuffled))(), {"go": go, "rest": rest, "null": contextlib.nullcontext})


@link
def under_odd_name(rest: Rest) -> None:
    names = {"co_name": choose((*NAMES, *ODD_NAMES)), "co_filename": choose(FILES)}
    if sys.version_info >= (3, 11):
        names["co_qualname"] = choose((*NAMES, *ODD_NAMES))
    made: Any = FunctionType(go.__code__.replace(**names), globals())  # type: ignore[arg-type]
    made([*rest, plainly]) if chosen.here.random() < 0.1 else made(rest)


@link
def in_imported_module(rest: Rest) -> None:
    name = f"imported_{next(NUMBERS)}"
    IMPORTED[name] = rest
    importlib.import_module(name)


NUMBERS = itertools.count()
IMPORTED: dict[str, Rest] = {}


class Importer(MetaPathFinder, Loader):
    """Imports modules that make the next call when they are executed."""

    def find_spec(self, name: str, path: object, target: object = None) -> Any:
        return spec_from_loader(name, self) if name in IMPORTED else None

    def exec_module(self, module: ModuleType) -> None:
        go(IMPORTED[module.__name__])


# The program


def run(seed: str, count: int) -> None:
    chosen.here = random.Random(seed)
    go(chosen.here.choices(LINKS, k=count))


def marks(threads: list[threading.Thread]) -> list[str]:
    """The scheduler's counters of threads, which change whenever these run."""
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
