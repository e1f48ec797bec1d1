"""Functions of Ray, asyncio and threading that an outline has steps of, and what they return.

What has no row returns something of which nothing is known, and the refs that it gets escape.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from dstack.probes.node.outlines.definitions import (
    UNSTATED,
    ActorClass,
    ActorOptions,
    Arguments,
    Awaitable,
    Class,
    Constant,
    Elsewhere,
    External,
    Function,
    Handle,
    Items,
    Lock,
    Maker,
    Refs,
    RemoteFunction,
    SharedKind,
    Value,
)
from dstack.probes.node.outlines.definitions import Mapping as Dict
from dstack.probes.node.outlines.steps import Steps
from dstack.probes.node.outlines.values import choices, element_of, joined


class Walker(Protocol):
    """What the functions need of the walk of a function."""

    steps: Steps

    def made_remote(self, value: Value, maker: Maker) -> Value:
        """The remote function or actor class that is made of a function or class."""

    def run_async(self, value: Value, node: ast.expr, *, blocks: bool) -> Value:
        """Await a value; ``blocks`` if the caller's thread does nothing else meanwhile."""

    def count_of(self, node: ast.expr) -> int | None:
        """The number that an expression is, None if it is not known."""


ALL = External("asyncio.ALL_COMPLETED")
Known = Callable[[Walker, ast.Call, Arguments], Value]


def _get(walker: Walker, node: ast.Call, arguments: Arguments) -> Value:
    walker.steps.wait(node, arguments.get(0, "object_refs"), is_timed=arguments.limits(1))
    return None


def _wait(walker: Walker, node: ast.Call, arguments: Arguments) -> Value:
    refs = arguments.get(0, "object_refs")
    refs = arguments.get(0, "ray_waitables") if refs is None else refs
    waits_for_all = _is_for_all(walker, node, refs)
    walker.steps.wait(node, refs, is_timed=arguments.limits(1), is_any=not waits_for_all, is_poll=True)
    return Items([Items([Refs()]), Items() if waits_for_all else Items([element_of(refs)])], is_fixed=True)


def _is_for_all(walker: Walker, node: ast.Call, refs: Value) -> bool:
    """Whether ``ray.wait`` returns only when each of its refs is there."""
    number = next((one.value for one in node.keywords if one.arg == "num_returns"), None)
    if isinstance(number, ast.Call) and isinstance(number.func, ast.Name) and number.func.id == "len":
        return bool(node.args) and [*map(ast.dump, number.args)] == [ast.dump(node.args[0])]
    wanted = 1 if number is None else walker.count_of(number)
    return isinstance(refs, Items) and refs.is_fixed and wanted is not None and wanted >= len(refs.elements)


def _put(walker: Walker, node: ast.Call, arguments: Arguments) -> Value:
    walker.steps.escape(arguments.all)
    return Refs()


def _remote(walker: Walker, node: ast.Call, arguments: Arguments) -> Value:
    maker = maker_of(node, arguments)
    if arguments.positional:
        return walker.made_remote(arguments.positional[0], maker)
    return maker


def maker_of(node: ast.Call, arguments: Arguments) -> Maker:
    """The options that a call states."""
    return Maker(
        ActorOptions(_slots(arguments), _groups(node)),
        streams=arguments.named.get("num_returns") in (Constant("streaming"), Constant("dynamic")),
    )


def _slots(arguments: Arguments) -> int | None:
    if "max_concurrency" not in arguments.named:
        return UNSTATED if arguments.is_whole else None
    stated = arguments.named["max_concurrency"]
    value = stated.value if isinstance(stated, Constant) else None
    return UNSTATED if stated == Constant(None) else value if isinstance(value, int) and value > 0 else None


def _groups(node: ast.Call) -> tuple[tuple[str, int], ...] | None:
    """The concurrency groups with their slots, by literals."""
    stated = next((word.value for word in node.keywords if word.arg in ("concurrency_groups", None)), None)
    if stated is None or (isinstance(stated, ast.Constant) and stated.value is None):
        return ()
    parts = zip(stated.keys, stated.values, strict=True) if isinstance(stated, ast.Dict) else ()
    found = [
        (key.value, slots.value)
        for key, slots in parts
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
        if isinstance(slots, ast.Constant) and isinstance(slots.value, int)
    ]
    is_known = isinstance(stated, ast.Dict) and len(found) == len(stated.keys)
    return tuple(found) if is_known else None


def _cancel(walker: Walker, node: ast.Call, arguments: Arguments) -> Value:
    walker.steps.cancel(arguments.all)
    return None


def _actor(walker: Walker, node: ast.Call, arguments: Arguments) -> Value:
    return Handle()


def _gather(walker: Walker, node: ast.Call, arguments: Arguments) -> Value:
    return Awaitable((*arguments.positional, *arguments.starred))


def _wait_for(walker: Walker, node: ast.Call, arguments: Arguments) -> Value:
    return Awaitable((arguments.get(0, "fut"),), is_timed=arguments.limits(1))


def _asyncio_wait(walker: Walker, node: ast.Call, arguments: Arguments) -> Value:
    is_any = arguments.named.get("return_when", ALL) != ALL
    return Awaitable((arguments.get(0, "fs"),), is_timed=arguments.limits(1), is_any=is_any)


def _same(walker: Walker, node: ast.Call, arguments: Arguments) -> Value:
    return arguments.positional[0] if arguments.positional else None


def _awaitable(walker: Walker, node: ast.Call, arguments: Arguments) -> Value:
    return Awaitable(arguments.positional[:1])


def _to_thread(walker: Walker, node: ast.Call, arguments: Arguments) -> Value:
    return Awaitable((elsewhere(walker, node, arguments),))


def elsewhere(walker: Walker, node: ast.Call, arguments: Arguments) -> Value:
    """The call of the first argument with the others, in another thread."""
    others = arguments.after(1)
    walker.steps.escape(others.all)
    return Elsewhere(arguments.get(0, "func"), others, node)


def _thread(walker: Walker, node: ast.Call, arguments: Arguments) -> Value:
    given, named = arguments.named.get("args", Items(is_fixed=True)), arguments.named.get("kwargs")
    walker.steps.escape(arguments.all)
    if not isinstance(given, Items) or not given.is_fixed or named is not None:
        return None
    return Elsewhere(arguments.named.get("target"), Arguments(tuple(given.elements)), node)


def _timer(walker: Walker, node: ast.Call, arguments: Arguments) -> Value:
    called, given = arguments.get(1, "function"), arguments.get(2, "args")
    walker.steps.escape(arguments.all)
    if called == External("ray.cancel"):
        walker.steps.cancel([given])
    return None


def _run(walker: Walker, node: ast.Call, arguments: Arguments) -> Value:
    return walker.run_async(arguments.positional[0] if arguments.positional else None, node, blocks=True)


def _shared(kind: SharedKind, *, is_async: bool = False) -> Known:
    def made(walker: Walker, node: ast.Call, arguments: Arguments) -> Value:
        return Lock(kind, is_async)

    return made


def _semaphore(*, is_async: bool = False) -> Known:
    def made(walker: Walker, node: ast.Call, arguments: Arguments) -> Value:
        count = _count(arguments, "value", 1)
        return Lock("lock" if count == 1 else "semaphore", is_async, count) if count is not None else None

    return made


def _queue(*, is_async: bool = False) -> Known:
    def made(walker: Walker, node: ast.Call, arguments: Arguments) -> Value:
        count = _count(arguments, "maxsize", 0)
        return Lock("queue", is_async, max(0, count)) if count is not None else None

    return made


def _count(arguments: Arguments, name: str, default: int) -> int | None:
    """The number that the only argument states; None if that is not known."""
    given = [*arguments.all]
    if not given and arguments.is_whole:
        return default
    value = arguments.get(0, name)
    is_stated = len(given) == 1 and arguments.is_whole and isinstance(value, Constant)
    number = value.value if is_stated and isinstance(value, Constant) else None
    return number if isinstance(number, int) else None


def _nothing(walker: Walker, node: ast.Call, arguments: Arguments) -> Value:
    return None


def _collection(walker: Walker, node: ast.Call, arguments: Arguments) -> Value:
    value = arguments.positional[0] if arguments.positional else Items()
    if isinstance(value, Items):
        return Items([*value.elements], value.is_fixed)
    if isinstance(value, Dict):
        return Items([*value.keys.elements])
    return None if value is None else Items([element_of(value)])


def _dict(walker: Walker, node: ast.Call, arguments: Arguments) -> Value:
    if not arguments.positional:
        return Dict(Items(), Items([*arguments.named.values()]))
    pairs = element_of(arguments.positional[0], all_of_them=True)
    if isinstance(pairs, Items) and len(pairs.elements) == 2:
        return Dict(Items([pairs.elements[0]]), Items([pairs.elements[1]]))
    return None


def _enumerate(walker: Walker, node: ast.Call, arguments: Arguments) -> Value:
    return Items([Items([None, element_of(_same(walker, node, arguments), all_of_them=True)], is_fixed=True)])


def _zip(walker: Walker, node: ast.Call, arguments: Arguments) -> Value:
    together = [element_of(one, all_of_them=True) for one in arguments.positional]
    return Items([Items([*together], is_fixed=arguments.is_whole)])


def _element(walker: Walker, node: ast.Call, arguments: Arguments) -> Value:
    return element_of(_same(walker, node, arguments))


def _len(walker: Walker, node: ast.Call, arguments: Arguments) -> Value:
    value = _same(walker, node, arguments)
    return Constant(len(value.elements)) if isinstance(value, Items) and value.is_fixed else None


QUEUES = ("Queue", "LifoQueue", "PriorityQueue")
KNOWN: Mapping[str, Mapping[str, Known]] = {
    "ray": {
        "get": _get,
        "wait": _wait,
        "put": _put,
        "remote": _remote,
        "get_actor": _actor,
        "cancel": _cancel,
        "kill": _nothing,
    },
    "asyncio": {
        "gather": _gather,
        "wait_for": _wait_for,
        "wait": _asyncio_wait,
        "run": _run,
        "to_thread": _to_thread,
        **dict.fromkeys(("shield", "create_task", "ensure_future"), _awaitable),
        "wrap_future": _same,
        "as_completed": _collection,
        "Lock": _shared("lock", is_async=True),
        "Event": _shared("event", is_async=True),
        **dict.fromkeys(("Semaphore", "BoundedSemaphore"), _semaphore(is_async=True)),
        **dict.fromkeys(QUEUES, _queue(is_async=True)),
    },
    "concurrent.futures": {"as_completed": _collection},
    "threading": {
        "Thread": _thread,
        "Timer": _timer,
        **dict.fromkeys(("Lock", "RLock"), _shared("lock")),
        "Event": _shared("event"),
        **dict.fromkeys(("Semaphore", "BoundedSemaphore"), _semaphore()),
    },
    "queue": {**dict.fromkeys(QUEUES, _queue()), "SimpleQueue": _queue()},
    "collections": {"deque": _collection},
    "typing": {"cast": lambda walker, node, arguments: arguments.get(1, "val")},
    "": {
        **dict.fromkeys(("list", "tuple", "set", "frozenset", "sorted", "reversed", "iter"), _collection),
        "dict": _dict,
        "enumerate": _enumerate,
        "zip": _zip,
        **dict.fromkeys(("next", "min", "max"), _element),
        "len": _len,
        **dict.fromkeys(("print", "str", "repr", "isinstance", "type", "id", "bool", "any", "all"), _nothing),
    },
}
"""The functions by their module; built-in ones have none."""


def known_call(path: str) -> Known | None:
    """What is known of the function with this whole name."""
    module, _, name = path.rpartition(".")
    return KNOWN.get(module, {}).get(name)


def _add(walker: Walker, node: ast.Call, base: Items, arguments: Arguments) -> Value:
    for value in arguments.positional[-1:]:
        base.add(value)
    return None


def _extend(walker: Walker, node: ast.Call, base: Items, arguments: Arguments) -> Value:
    added = arguments.positional[0] if arguments.positional else None
    if isinstance(added, Items):
        base.elements += [one for one in added.elements if one not in base.elements]
        base.is_fixed = False
    elif added is not None:
        base.add(element_of(added))
    return None


def _taken(walker: Walker, node: ast.Call, base: Items, arguments: Arguments) -> Value:
    return element_of(base)


def _cleared(walker: Walker, node: ast.Call, base: Items, arguments: Arguments) -> Value:
    base.elements.clear()
    return None


ADDING: Mapping[str, Callable[[Walker, ast.Call, Items, Arguments], Value]] = {
    **dict.fromkeys(("append", "add", "insert", "appendleft"), _add),
    **dict.fromkeys(("extend", "update", "extendleft"), _extend),
}
OF_ITEMS = {**ADDING, **dict.fromkeys(("pop", "popleft"), _taken), "clear": _cleared}


def mapping_method(base: Dict, name: str, arguments: Arguments) -> Value:
    """What a method of a dict returns."""
    if name == "items":
        pair = [element_of(one, all_of_them=True) for one in (base.keys, base.values)]
        return Items([Items(pair, is_fixed=True)])
    if name in ("keys", "values"):
        return Items([*getattr(base, name).elements])
    if name == "setdefault":
        base.keys.add(arguments.get(0, "key"))
        base.values.add(arguments.get(1, "default"))
    return element_of(base.values) if name in ("get", "pop", "setdefault") else None


RUNNING = ("run_until_complete",)
TASKS = ("create_task",)
SUBMITTING = ("submit", "run_in_executor")
"""Methods of event loops, groups of tasks and executors."""


def remote_of(walker: Walker, value: Value, maker: Maker) -> Value:
    """``ray.remote`` of a function or class, or the value with these options."""
    found: list[Value] = []
    for one in choices(value):
        if isinstance(one, ActorClass):
            found.append(ActorClass(one.info, maker.options.over(one.options)))
        elif isinstance(one, Class):
            found.append(ActorClass(one.info, maker.options))
        elif isinstance(one, Function):
            program = one.info.scope.program
            made = program.made(maker, one.info)
            found.append(RemoteFunction(made.name, made.streams or maker.streams))
        elif isinstance(one, RemoteFunction):
            found.append(RemoteFunction(one.name, one.streams or maker.streams))
        else:
            found.append(None)
    return joined(found) if found else None


def names_of(value: Value) -> Sequence[str]:
    """What the tasks of a remote function or class are called; none if it is not known."""
    found: list[str] = []
    for one in choices(value):
        if isinstance(one, RemoteFunction):
            found.append(one.name)
        elif isinstance(one, ActorClass):
            found.append(one.info.name)
        elif isinstance(one, External):
            found.append(one.name)
        else:
            return ()
    return [*dict.fromkeys(found)]


def handle_of(value: Value) -> Value:
    """The actor that a class makes; None if it is no class."""
    made = [Handle(one.info) for one in choices(value) if isinstance(one, ActorClass)]
    return joined(made) if made else Handle() if isinstance(value, External) and value.name[:1].isupper() else None
