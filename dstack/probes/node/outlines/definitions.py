"""The functions and classes that the files of a program define, and what their names stand for wherever they run.

A value is what an expression may be, as far as its source says; None is a value of which nothing is known. Containers
and instances are mutable, and known by their identity, as in the program.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from dstack.probes.node.cached_property import cached_property
from dstack.probes.node.outlines.source_modules import (
    NAMED,
    AnyFunction,
    SourceModule,
    assignments,
    attributes_of,
    bindings_of,
    captured_names,
    own_definitions,
    own_nodes,
)

ASYNC_SLOTS = 1000
"""How many calls an actor with an async method runs at a time by default; Ray 2.46 to 2.60."""
PLAIN_BASES = ("abc.", "typing.", "typing_extensions.", "enum.", "collections.abc.")
"""Modules whose classes have no async methods."""
PLAIN_NAMES = frozenset(("object", "Exception", "dict", "list", "ABC"))
PLAIN_DECORATORS = frozenset(("dataclass", "final", "runtime_checkable", "total_ordering"))
BUILTINS = frozenset(dir(builtins))

UNSTATED = -1
"""The slots of an actor whose options do not state them."""
OPTIONS_WITH_GROUP = re.compile(r"\.options\([^()]*\bconcurrency_group\s*=")
MAX_ITEMS = 64


@dataclass(frozen=True, slots=True)
class Refs:
    """A ref of one of these calls, by their steps; of none, it is a ref whose value is there.

    ``is_one_of``: it is not known of which of them, though they were made without a condition. ``streams`` says that
    it is the generator that a streaming call returns.
    """

    calls: frozenset[int] = frozenset()
    is_one_of: bool = False
    streams: bool = False


@dataclass(eq=False, slots=True)
class Items:
    """A list, tuple, set or iterable. If it ``is_fixed``, each element has its position, else it has any number."""

    elements: list[Value] = field(default_factory=list)
    is_fixed: bool = False

    def add(self, value: Value) -> None:
        """Add an element, at no known position."""
        self.is_fixed = False
        if value not in self.elements and len(self.elements) < MAX_ITEMS:
            self.elements.append(value)


@dataclass(eq=False, slots=True)
class Mapping:
    """A dict: its keys, which may be refs, and its values."""

    keys: Items = field(default_factory=Items)
    values: Items = field(default_factory=Items)


@dataclass(frozen=True, slots=True)
class Constant:
    """A number, text, truth value or None."""

    value: object


@dataclass(frozen=True, slots=True)
class External:
    """Something of a module that is not read, by its whole name: ``ray.get``."""

    path: str

    @property
    def name(self) -> str:
        """The last part of its name."""
        return self.path.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class Module:
    """A module of the program."""

    module: SourceModule


@dataclass(eq=False, slots=True)
class Function:
    """A function, a method bound to ``owner``, or a lambda; ``closure`` is the running function that defined it."""

    info: FunctionInfo
    owner: Instance | None = None
    closure: object = None


@dataclass(frozen=True, slots=True)
class Class:
    """A class of the program that is no actor class."""

    info: ClassInfo


@dataclass(eq=False, slots=True)
class Instance:
    """An object of a class of the program. If it ``is_shared``, other methods use its attributes."""

    info: ClassInfo
    attributes: dict[str, Value] = field(default_factory=dict)
    is_shared: bool = False


@dataclass(frozen=True, slots=True)
class ActorOptions:
    """The slots of an actor and those of its concurrency groups, as its options state them: None if that is unknown."""

    slots: int | None = UNSTATED
    groups: tuple[tuple[str, int], ...] | None = ()

    def over(self, before: ActorOptions) -> ActorOptions:
        """These, and of those before what these do not state."""
        slots = before.slots if self.slots == UNSTATED else self.slots
        return ActorOptions(slots, before.groups if self.groups == () else self.groups)


UNKNOWN_OPTIONS = ActorOptions(None, None)


@dataclass(frozen=True, slots=True)
class Maker:
    """``ray.remote(...)`` with options, which makes remote functions and actor classes."""

    options: ActorOptions = ActorOptions()
    streams: bool = False


@dataclass(frozen=True, slots=True)
class RemoteFunction:
    """A remote function or a method of an actor."""

    name: str
    streams: bool = False


@dataclass(frozen=True, slots=True)
class ActorClass:
    """An actor class with the options that are given after its decorator."""

    info: ClassInfo
    options: ActorOptions = ActorOptions()


@dataclass(frozen=True, slots=True)
class Handle:
    """An actor; ``info`` is its class if it is known."""

    info: ClassInfo | None = None


SharedKind = Literal["lock", "semaphore", "event", "queue"]


@dataclass(eq=False, slots=True)
class Lock:
    """What threads or coroutines wait for in their process; ``name`` is empty until it is assigned.

    ``count`` can hold a lock or semaphore at a time, or are in a queue at most: 0 if any number is.
    """

    kind: SharedKind = "lock"
    is_async: bool = False
    count: int = 1
    name: str = ""
    is_passed: bool = False

    def named(self, name: str, *, is_passed: bool = False) -> Lock:
        """The same with a name; if it ``is_passed``, one method acquires what another one releases."""
        return replace(self, name=name, is_passed=is_passed or self.is_passed)

    @property
    def uses(self) -> dict[str, Sequence[Use]]:
        """What each method that is known does, in this order."""
        if self.kind == "queue":
            room = Use("acquire", "room", self.count), Use("release", "room", self.count)
            put, get = (room[:1], room[1:]) if self.count else ((), ())
            return {"put": (*put, Use("release", "", 0)), "get": (Use("acquire", "", 0), *get)}
        if self.kind == "event":
            return {"wait": (Use("acquire", "", 0), Use("release", "", 0)), "set": (Use("release", "", 0),)}
        return {"acquire": (Use("acquire", "", self.count),), "release": (Use("release", "", self.count),)}


@dataclass(frozen=True, slots=True)
class Use:
    """What a method takes or gives: the ``part`` of a queue or semaphore, of which ``count`` are there at the begin."""

    kind: Literal["acquire", "release"]
    part: str
    count: int


@dataclass(eq=False, slots=True)
class Awaitable:
    """What waits for its parts when it is awaited; ``is_timed`` or ``is_any`` if it may end before all have ended.

    It is timed, too, once something may cancel it.
    """

    parts: tuple[Value, ...]
    is_timed: bool = False
    is_any: bool = False


@dataclass(eq=False, slots=True)
class Coroutine:
    """A call of an async function, which runs when it is awaited."""

    function: Function
    arguments: Arguments
    node: ast.Call


@dataclass(eq=False, slots=True)
class Elsewhere:
    """A call that another thread makes; what waits for its end waits for what it waits for."""

    called: Value
    arguments: Arguments
    node: ast.Call


@dataclass(frozen=True, slots=True)
class Either:
    """One of several functions, classes or actors."""

    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of a call; ``is_whole`` if no ``*`` or ``**`` adds others. ``starred`` are those of ``*``."""

    positional: tuple[Value, ...] = ()
    named: dict[str, Value] = field(default_factory=dict)
    starred: tuple[Value, ...] = ()
    is_whole: bool = True

    def get(self, position: int, name: str) -> Value:
        """The argument at a position or with a name."""
        if name in self.named:
            return self.named[name]
        return self.positional[position] if position < len(self.positional) else None

    def limits(self, position: int, name: str = "timeout") -> bool:
        """Whether a limit of time is given; None and -1 are none."""
        is_given = name in self.named or position < len(self.positional)
        return is_given and self.get(position, name) not in (Constant(None), Constant(-1))

    def after(self, number: int) -> Arguments:
        """Those without the first ones."""
        return Arguments(self.positional[number:], self.named, self.starred, self.is_whole)

    @property
    def all(self) -> tuple[Value, ...]:
        """All of them."""
        return (*self.positional, *self.starred, *self.named.values())


Value = (
    Refs
    | Items
    | Mapping
    | Constant
    | External
    | Module
    | Function
    | Class
    | Instance
    | Maker
    | RemoteFunction
    | ActorClass
    | Handle
    | Lock
    | Awaitable
    | Coroutine
    | Elsewhere
    | Either
    | None
)


class Scope:
    """The names of a module or function; ``parent`` is the function or module around it."""

    def __init__(
        self,
        program: Program,
        module: SourceModule,
        parent: Scope | None,
        body: Iterable[ast.AST],
        parameters: Iterable[str] = (),
    ) -> None:
        self.program = program
        self.module = module
        self.parent = parent
        self._body = body
        self._parameters = parameters
        self._values: dict[str, Value] = {}

    @cached_property
    def bindings(self) -> dict[str, list[ast.AST | None]]:
        """Its names with what each statement gives them; None is something of which nothing is known."""
        found: dict[str, list[ast.AST | None]] = {name: [None] for name in self._parameters}
        for node in own_nodes(self._body):
            for name, value in bindings_of(node):
                found.setdefault(name, []).append(value)
        return found

    def value(self, name: str) -> Value:
        """What the name stands for wherever that is certain."""
        if name in self.bindings:
            if name not in self._values:
                self._values[name] = None  # a name that is defined by itself
                self._values[name] = self._found(name)
            return self._values[name]
        if self.parent is not None:
            return self.parent.value(name)
        if name == "__name__":
            return Constant("__main__" if self.module.is_main else self.module.name)
        return External(name) if name in BUILTINS else None

    def _found(self, name: str) -> Value:
        nodes = self.bindings[name]
        node = nodes[0]
        if isinstance(node, (ast.Import, ast.ImportFrom)) and all(
            isinstance(one, (ast.Import, ast.ImportFrom)) for one in nodes
        ):
            return self.program.imported(self.module, node, name)
        if len(nodes) != 1 or node is None:
            return None
        if isinstance(node, NAMED):
            return self.program.defined(node)
        value = self.program.evaluate(node, self) if isinstance(node, ast.expr) else None
        if isinstance(value, Lock) and not value.name and self.parent is None:
            return value.named(self.module.qualified(name)) if value.kind == "lock" else None
        return value


class FunctionInfo:
    """A function, method or lambda: its names and where it is defined."""

    def __init__(self, node: AnyFunction, scope: Scope, owner: ClassInfo | None, holders: tuple[ast.AST, ...]) -> None:
        self.node = node
        self.owner = owner
        self.holders = holders
        body = node.body if isinstance(node.body, list) else [node.body]
        self.body: Sequence[ast.AST] = body
        self.parameters = [one.arg for one in (*node.args.posonlyargs, *node.args.args)]
        others = (*node.args.kwonlyargs, *filter(None, (node.args.vararg, node.args.kwarg)))
        parameters = (*self.parameters, *(one.arg for one in others))
        self.scope = Scope(scope.program, scope.module, scope, body, parameters)
        self.is_async = isinstance(node, ast.AsyncFunctionDef)

    @property
    def module(self) -> SourceModule:
        """The file that it is in."""
        return self.scope.module

    @property
    def name(self) -> str:
        """Its own name, empty for a lambda."""
        return "" if isinstance(self.node, ast.Lambda) else self.node.name

    @cached_property
    def is_generator(self) -> bool:
        """Whether it yields."""
        return any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in own_nodes(self.body))

    @cached_property
    def captured(self) -> frozenset[str]:
        """The names that functions within it use."""
        return captured_names(self.body)

    @cached_property
    def decorators(self) -> Sequence[Value]:
        """What it is decorated with."""
        assert self.scope.parent is not None
        evaluate = self.scope.program.evaluate
        listed = [] if isinstance(self.node, ast.Lambda) else self.node.decorator_list
        return [evaluate(one, self.scope.parent) for one in listed]

    @property
    def is_bound(self) -> bool:
        """Whether its first parameter is the object or the class."""
        return self.owner is not None and External("staticmethod") not in self.decorators


class ClassInfo:
    """A class: its methods, the classes it is derived from, and what its methods assign to its attributes."""

    def __init__(self, node: ast.ClassDef, scope: Scope, holders: tuple[ast.AST, ...]) -> None:
        self.node = node
        self.scope = scope
        self.name = node.name
        self.holders = holders
        self.methods: dict[str, FunctionInfo] = {}
        self.inner: dict[str, ClassInfo] = {}
        self.created: set[ActorOptions] = set()
        self.created_last: set[ActorOptions] = set()
        """The options of creations of its actors in the program, and those in the last walks."""

    @cached_property
    def _bases(self) -> Sequence[Value]:
        return [self.scope.program.evaluate(one, self.scope) for one in self.node.bases]

    @cached_property
    def mro(self) -> Sequence[ClassInfo]:
        """The class and those it is derived from, as far as they are read."""
        found: dict[ClassInfo, None] = {self: None}
        waiting = [self]
        while waiting and len(found) < 32:
            one = waiting.pop(0)
            bases = [base.info for base in one._bases if isinstance(base, (Class, ActorClass))]
            waiting += [base for base in bases if base not in found]
            found.update(dict.fromkeys(bases))
        return [*found]

    @cached_property
    def has_unknown_base(self) -> bool:
        """Whether a class that was not read may add methods."""
        bases = [base for one in self.mro for base in one._bases if not isinstance(base, (Class, ActorClass))]
        return not all(_is_plain(base) for base in bases)

    def method(self, name: str) -> FunctionInfo | None:
        """The method that an object of the class has under this name."""
        return next((one.methods[name] for one in self.mro if name in one.methods), None)

    @property
    def all_methods(self) -> dict[str, FunctionInfo]:
        """Its methods, also those of its bases."""
        return {name: method for one in self.mro[::-1] for name, method in one.methods.items()}

    @cached_property
    def is_async(self) -> bool:
        """Whether a method is ``async def``."""
        return any(one.is_async for one in self.all_methods.values())

    @cached_property
    def decorator(self) -> Maker | None:
        """Its ``@ray.remote``; None without one. Decorators that are not known make its slots uncertain."""
        values = [self.scope.program.evaluate(one, self.scope) for one in self.node.decorator_list]
        makers = [one for one in map(as_maker, values) if one]
        unknown = [one for one in values if not as_maker(one) and not _is_plain_decorator(one)]
        if not makers:
            return None
        return Maker(UNKNOWN_OPTIONS) if unknown else makers[0]

    def options(self, created: Collection[ActorOptions]) -> ActorOptions:
        """The options of its actors, made by creations with these; unknown if they differ."""
        stated = self.decorator.options if self.decorator else ActorOptions()
        given = {one.over(stated) for one in created or {ActorOptions()}}
        return next(iter(given)) if len(given) == 1 else UNKNOWN_OPTIONS

    def groups(self, created: Collection[ActorOptions]) -> tuple[tuple[str, int], ...] | None:
        """The concurrency groups with their slots, of actors made by such creations; None if they are not certain.

        They are not if a call of the program names the group that it runs in.
        """
        stated = self.options(created).groups
        named = [group_of(one) for one in self.all_methods.values()]
        if not stated:
            return None if any(named) else stated
        return None if None in named or self.scope.program.has_calls_with_groups else stated

    def slots(self, created: Collection[ActorOptions]) -> int | None:
        """How many calls an actor runs at a time, made by such creations; None if not certain."""
        slots = self.options(created).slots
        if slots != UNSTATED:
            return slots
        if self.has_unknown_base or self.scope.program.has_unknown_slots:
            return None
        return ASYNC_SLOTS if self.is_async else 1

    @cached_property
    def _assigned(self) -> dict[str, list[tuple[ast.expr | None, Scope]]]:
        found: dict[str, list[tuple[ast.expr | None, Scope]]] = {}
        for target, value in assignments(own_nodes(self.node.body)):
            if isinstance(target, ast.Name):
                found.setdefault(target.id, []).append((value, self.scope))
        for method in self.methods.values():
            for target, value in assignments(own_nodes(method.body)):
                if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
                    found.setdefault(target.attr, []).append((value, method.scope))
        return found

    def attribute(self, name: str) -> Value:
        """What each assignment to an attribute gives it, if that is one thing; or a class within the class."""
        if inner := next((info.inner[name] for info in self.mro if name in info.inner), None):
            return self.scope.program.defined(inner.node)
        listed = [one for info in self.mro for one in info._assigned.get(name, ())]
        evaluate = self.scope.program.evaluate
        values = [evaluate(node, scope) if node is not None else None for node, scope in listed]
        if values and all(isinstance(one, Lock) for one in values):
            return self._shared(name, [one for one in values if isinstance(one, Lock)])
        return values[0] if len(values) == 1 else None

    def _shared(self, name: str, values: Sequence[Lock]) -> Lock | None:
        """The lock, queue or event that is assigned to an attribute, if all uses of it in the program are known."""
        value = values[0]
        if all(one.kind == "lock" for one in values):
            return Lock(is_async=any(one.is_async for one in values), name=f"{self.name}.{name}")
        if len(values) > 1 or value.count < 0 or not self._is_alone:
            return None
        uses = [use for use in self.scope.program.uses_of(name) if not self._is_of_another(use)]
        if value.kind == "semaphore" and value.count and all(self._is_held(use) for use in uses):
            return value.named(f"{self.name}.{name}")
        is_known = all(self._is_assigned(use) or self._is_passing(use, value) for use in uses)
        is_known = is_known and sum(map(self._is_assigned, uses)) == 1
        return value.named(f"{self.name}.{name}", is_passed=True) if is_known else None

    @property
    def _is_alone(self) -> bool:
        """Whether no other class of the program, and none that was not read, shares its attributes."""
        others = [one for one in self.scope.program.classes if one is not self]
        return len(self.mro) == 1 and not self.has_unknown_base and not any(self in one.mro for one in others)

    def _is_of_another(self, use: AttributeUse) -> bool:
        """Whether an attribute of this name is a method that is called, or one of an object of another class."""
        is_called = isinstance(use.parents[0], ast.Call) and use.parents[0].func is use.node
        return is_called or (use.method is not None and use.method.owner is not self and use.is_of_self)

    def _is_assigned(self, use: AttributeUse) -> bool:
        is_target = isinstance(use.node.ctx, ast.Store) and use.is_of_self
        return is_target and use.method is not None and use.method.owner is self and use.method.name == "__init__"

    def _is_held(self, use: AttributeUse) -> bool:
        """Whether it is assigned by the constructor, or taken by a ``with``."""
        return self._is_assigned(use) or (isinstance(use.parents[0], ast.withitem) and use.is_of_self)

    def _is_passing(self, use: AttributeUse, value: Lock) -> bool:
        """Whether it is a plain use in a method that is only called through Ray, without a timeout."""
        if len(use.parents) < 3:  # it is used outside of functions
            return False
        called, call, around = use.parents[:3]
        if not (isinstance(called, ast.Attribute) and isinstance(call, ast.Call) and call.func is called):
            return False
        uses, method = value.uses.get(called.attr, ()), use.method
        is_awaited = value.is_async and called.attr not in ("set", "release")
        is_plain = not call.keywords and len(call.args) == (called.attr == "put")
        is_plain = is_plain and not any(isinstance(one, ast.Starred) for one in call.args)
        if not uses or not is_plain or isinstance(around, ast.Await) != is_awaited or not use.is_of_self:
            return False
        return method is not None and method.owner is self and not self._calls_itself(method.name)

    def _calls_itself(self, name: str) -> bool:
        """Whether the class uses a method of its own other than through Ray."""
        own = {one.parameters[0] for one in self.methods.values() if one.is_bound and one.parameters}
        return any(
            node.attr == name and not _is_remote(parents[0]) and (_is_super(node.value) or _name_of(node.value) in own)
            for node, parents in attributes_of(self.node)
        )


def _is_remote(around: ast.AST) -> bool:
    return isinstance(around, ast.Attribute) and around.attr in ("remote", "options")


def _is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and _name_of(node.func) == "super"


def _name_of(node: ast.expr) -> str | None:
    return node.id if isinstance(node, ast.Name) else None


def group_of(method: FunctionInfo) -> str | None:
    """The concurrency group that the decorator of a method names, empty without one; None if it is no literal."""
    listed = [] if isinstance(method.node, ast.Lambda) else method.node.decorator_list
    words = (word for one in listed if isinstance(one, ast.Call) for word in one.keywords)
    named = [word.value for word in words if word.arg == "concurrency_group"]
    if not named:
        return ""
    return str(named[0].value) if isinstance(named[0], ast.Constant) else None


def _is_plain(base: Value) -> bool:
    return isinstance(base, External) and (base.name in PLAIN_NAMES or base.path.startswith(PLAIN_BASES))


def _is_plain_decorator(value: Value) -> bool:
    return isinstance(value, External) and value.name in PLAIN_DECORATORS


def as_maker(value: Value) -> Maker | None:
    """The value if it is ``ray.remote``, with or without options."""
    return Maker() if value == External("ray.remote") else value if isinstance(value, Maker) else None


@dataclass(frozen=True, slots=True)
class AttributeUse:
    """An attribute in the source, what is around it from within, and the innermost function, if it has a name."""

    node: ast.Attribute
    parents: Sequence[ast.AST]
    method: FunctionInfo | None

    @property
    def is_of_self(self) -> bool:
        """Whether it is one of the object whose method this is."""
        method = self.method
        return method is not None and method.is_bound and _name_of(self.node.value) in method.parameters[:1]


@dataclass
class Program:
    """The files of a program by the names of their modules; ``evaluate`` gives what an expression always is.

    ``evaluated`` are the expressions that are evaluated now. ``inert`` are calls that have no steps, with what they
    return. ``has_unknown_slots``: a class that is not known gets slots of its own. ``remote`` are the functions that
    the program makes remote.
    """

    evaluate: Callable[[ast.expr, Scope], Value]
    modules: dict[str, SourceModule] = field(default_factory=dict)
    scopes: dict[str, Scope] = field(default_factory=dict)
    functions: list[FunctionInfo] = field(default_factory=list)
    classes: list[ClassInfo] = field(default_factory=list)
    remote: set[FunctionInfo] = field(default_factory=set)
    has_unknown_slots: bool = False
    evaluated: set[ast.expr] = field(default_factory=set)
    inert: dict[Hashable, Value] = field(default_factory=dict)
    _by_node: dict[ast.AST, FunctionInfo | ClassInfo] = field(default_factory=dict)
    _uses: dict[str, Sequence[AttributeUse]] = field(default_factory=dict)

    def uses_of(self, name: str) -> Sequence[AttributeUse]:
        """Each attribute of this name in the program."""
        if name not in self._uses:
            trees = (module.tree for module in self.modules.values() if f".{name}" in module.text)
            self._uses[name] = [
                AttributeUse(node, parents, self._innermost(parents))
                for tree in trees
                for node, parents in attributes_of(tree)
                if node.attr == name
            ]
        return self._uses[name]

    def _innermost(self, parents: Iterable[ast.AST]) -> FunctionInfo | None:
        around = next(
            (one for one in parents if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))), None
        )
        return self.function(around) if around is not None else None

    @property
    def has_calls_with_groups(self) -> bool:
        """Whether a call names a concurrency group, as ``actor.read.options(concurrency_group="io").remote()``."""
        return any(OPTIONS_WITH_GROUP.search(one.text) for one in self.modules.values())

    def add(self, module: SourceModule) -> None:
        """Add a file with all that it defines. Raises RecursionError."""
        self.modules[module.name] = module
        self.scopes[module.path] = scope = Scope(self, module, None, module.tree.body)
        self._index(module.tree.body, scope, None, ())

    def _index(
        self, body: Iterable[ast.AST], scope: Scope, owner: ClassInfo | None, holders: tuple[ast.AST, ...]
    ) -> None:
        for node in own_definitions(body):
            if isinstance(node, ast.ClassDef):
                info = ClassInfo(node, scope, holders)
                self._by_node[node] = info
                self.classes.append(info)
                if owner is not None:
                    owner.inner[node.name] = info
                self._index(node.body, scope, info, holders)
            else:
                function = FunctionInfo(node, scope, owner, holders)
                self._by_node[node] = function
                self.functions.append(function)
                if owner is not None:
                    owner.methods[node.name] = function
                self._index(node.body, function.scope, None, (*holders, node))

    def function(self, node: ast.AST) -> FunctionInfo | None:
        """The function of a definition."""
        found = self._by_node.get(node)
        return found if isinstance(found, FunctionInfo) else None

    def class_of(self, node: ast.AST) -> ClassInfo | None:
        """The class of a definition."""
        found = self._by_node.get(node)
        return found if isinstance(found, ClassInfo) else None

    def defined(self, node: ast.AST) -> Value:
        """What a definition gives its name."""
        found = self._by_node.get(node)
        if isinstance(found, ClassInfo):
            maker = found.decorator
            return ActorClass(found) if maker else Class(found)
        if not isinstance(found, FunctionInfo):
            return None
        return next((self.made(one, found) for one in map(as_maker, found.decorators) if one), Function(found))

    def made(self, maker: Maker, info: FunctionInfo) -> RemoteFunction:
        """The remote function that is made of a function."""
        self.remote.add(info)
        return RemoteFunction(info.name, info.is_generator)

    def imported(self, module: SourceModule, node: ast.AST, name: str) -> Value:
        """What an import gives a name."""
        if isinstance(node, ast.Import):
            path = next((one.name if one.asname else name for one in node.names if name in _bound(one)), name)
            return self._named(path)
        assert isinstance(node, ast.ImportFrom)
        alias = next((one.name for one in node.names if (one.asname or one.name) == name), name)
        return self.attribute(self._named(module.start_of(node)), alias)

    def _named(self, path: str) -> Value:
        module = self.modules.get(path)
        return Module(module) if module else External(path)

    def attribute(self, of: Value, name: str) -> Value:
        """The attribute of a module: what it defines, or a module in it."""
        if isinstance(of, External):
            return self._named(f"{of.path}.{name}")
        if not isinstance(of, Module):
            return None
        scope = self.scopes[of.module.path]
        if name in scope.bindings:
            return scope.value(name)
        inner = self.modules.get(f"{of.module.name}.{name}")
        return Module(inner) if inner else None


def _bound(alias: ast.alias) -> tuple[str]:
    return (alias.asname or alias.name.partition(".")[0],)
