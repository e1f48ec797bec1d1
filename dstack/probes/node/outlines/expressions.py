"""Walks the expressions of a function: what each is, and the steps within it.

Calls of the program's own functions are walked at their place, with their arguments for their parameters.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Hashable, Sequence

from dstack.probes.node.outlines.definitions import (
    UNSTATED,
    ActorClass,
    Arguments,
    Awaitable,
    Class,
    ClassInfo,
    Constant,
    Coroutine,
    Either,
    Elsewhere,
    External,
    Function,
    FunctionInfo,
    Handle,
    Instance,
    Items,
    Lock,
    Maker,
    Mapping,
    Module,
    Program,
    Refs,
    RemoteFunction,
    Value,
)
from dstack.probes.node.outlines.known_calls import (
    ADDING,
    OF_ITEMS,
    RUNNING,
    SUBMITTING,
    TASKS,
    elsewhere,
    handle_of,
    known_call,
    maker_of,
    mapping_method,
    names_of,
    remote_of,
)
from dstack.probes.node.outlines.steps import Effect, Running, Steps, Yielded, flattened
from dstack.probes.node.outlines.values import CHOSEN, choices, element_of, item_at, joined, refs_in

MAX_DEPTH = 4
"""How deep calls of the program's own functions are followed."""
MAX_CALLS = 400
"""How many of them are followed in the walk of one function."""


class Expressions:
    """The walk of a function's expressions; a ``shared`` object is the one whose method it walks."""

    def __init__(self, program: Program, shared: Instance | None = None) -> None:
        self.program = program
        self.steps = Steps()
        self.shared = shared
        self._calls_left = MAX_CALLS
        self._cuts = 0
        """The calls of the program's own functions that were not followed."""

    def run_body(self, body: Sequence[ast.AST]) -> None:
        """Walk the statements of a function, or the expression of a lambda."""
        raise NotImplementedError

    def value(self, node: ast.expr | None) -> Value:
        """What an expression is; its steps are added."""
        if node is None:
            return None
        walk: Callable[[ast.expr], Value] | None = getattr(self, f"_of_{type(node).__name__}", None)
        return walk(node) if walk else self._of_parts(node)

    def _of_parts(self, node: ast.AST) -> Value:
        for part in ast.iter_child_nodes(node):
            if isinstance(part, ast.expr):
                self.value(part)
        return None

    def _of_Name(self, node: ast.Name) -> Value:
        return self.steps.current.value(node.id)

    def _of_Constant(self, node: ast.Constant) -> Value:
        return Constant(node.value)

    def _of_Attribute(self, node: ast.Attribute) -> Value:
        return self.attribute(self.value(node.value), node.attr)

    def _of_Tuple(self, node: ast.Tuple | ast.List | ast.Set) -> Value:
        made = Items(is_fixed=True)
        for one in node.elts:
            value = self.value(one.value if isinstance(one, ast.Starred) else one)
            if isinstance(one, ast.Starred):
                made.elements += value.elements if isinstance(value, Items) else [element_of(value)]
                made.is_fixed = made.is_fixed and isinstance(value, Items) and value.is_fixed
            else:
                made.elements.append(value)
        return made

    _of_List = _of_Set = _of_Tuple

    def _of_Dict(self, node: ast.Dict) -> Value:
        made = Mapping()
        for key, held in zip(node.keys, node.values, strict=True):
            value = self.value(held)
            if key is not None:
                made.keys.add(self.value(key))
                made.values.add(value)
            elif isinstance(value, Mapping):
                made.keys.elements += value.keys.elements
                made.values.elements += value.values.elements
        return made

    def _of_Subscript(self, node: ast.Subscript) -> Value:
        base, index = self.value(node.value), self.value(node.slice)
        return base if isinstance(node.slice, ast.Slice) and isinstance(base, Items) else item_at(base, index)

    def _of_BinOp(self, node: ast.BinOp) -> Value:
        left, right = self.value(node.left), self.value(node.right)
        if isinstance(node.op, ast.Add) and isinstance(left, Items) and isinstance(right, Items):
            return Items([*left.elements, *right.elements], left.is_fixed and right.is_fixed)
        repeated = left if isinstance(left, Items) else right
        return Items([*repeated.elements]) if isinstance(repeated, Items) and isinstance(node.op, ast.Mult) else None

    def _of_BoolOp(self, node: ast.BoolOp) -> Value:
        since = len(self.steps.drafts)
        values = [self.value(node.values[0])]
        with self.steps.in_branch():
            values += map(self.value, node.values[1:])
        return joined(values, since)

    def _of_UnaryOp(self, node: ast.UnaryOp) -> Value:
        value = self.value(node.operand)
        if isinstance(node.op, ast.USub) and isinstance(value, Constant) and isinstance(value.value, (int, float)):
            return Constant(-value.value)
        return None

    def _of_IfExp(self, node: ast.IfExp) -> Value:
        decided = self.decided(node.test)
        self.value(node.test)
        if decided is not None:
            return self.value(node.body if decided else node.orelse)
        since = len(self.steps.drafts)
        with self.steps.in_branch():
            return joined((self.value(node.body), self.value(node.orelse)), since)

    def _of_NamedExpr(self, node: ast.NamedExpr) -> Value:
        value = self.value(node.value)
        self.assign(node.target, value)
        return value

    def _of_Starred(self, node: ast.Starred) -> Value:
        return self.value(node.value)

    def _of_Lambda(self, node: ast.Lambda) -> Value:
        running = self.steps.current
        return Function(FunctionInfo(node, running.scope, None, ()), closure=running)

    def _of_Yield(self, node: ast.Yield) -> Value:
        value = self.value(node.value)
        self.steps.current.yielded.add(value)
        if self.steps.current.stops_at_yield:
            raise Yielded
        return None

    def _of_YieldFrom(self, node: ast.YieldFrom) -> Value:
        self.steps.current.yielded.add(element_of(self.value(node.value), all_of_them=True))
        return None

    def _of_Await(self, node: ast.Await) -> Value:
        return self.run_async(self.value(node.value), node, blocks=False)

    def _of_ListComp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> Value:
        made = Items()
        self._comprehend(node, node.generators, lambda: made.add(self.value(node.elt)))
        return made

    _of_SetComp = _of_GeneratorExp = _of_ListComp

    def _of_DictComp(self, node: ast.DictComp) -> Value:
        made = Mapping()

        def add() -> None:
            made.keys.add(self.value(node.key))
            made.values.add(self.value(node.value))

        self._comprehend(node, node.generators, add)
        return made

    def _comprehend(self, node: ast.expr, generators: Sequence[ast.comprehension], add: Callable[[], None]) -> None:
        names = dict(self.steps.current.names)
        self._generate(node, generators, add)
        self.steps.current.names = names

    def _generate(self, node: ast.expr, generators: Sequence[ast.comprehension], add: Callable[[], None]) -> None:
        if not generators:
            add()
            return
        first = generators[0]
        iterated = self.value(first.iter)
        with self.steps.in_loop(node.lineno):
            self.take_next(first.iter, iterated, is_async=bool(first.is_async))
            self.assign(first.target, element_of(iterated, all_of_them=True))
            for condition in first.ifs:
                self.value(condition)
            if first.ifs:
                with self.steps.in_branch():
                    self._generate(node, generators[1:], add)
            else:
                self._generate(node, generators[1:], add)

    def take_next(self, node: ast.expr, iterated: Value, *, is_async: bool) -> None:
        """What a pass of a loop begins with: a wait for an item of a streaming call."""
        if isinstance(iterated, Refs) and (iterated.streams or is_async):
            self.steps.wait(node, iterated, awaits=is_async)

    def decided(self, test: ast.expr) -> bool | None:
        """The value of a condition that is the same each time; None for any other."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self.decided(test.operand)
            return None if inner is None else not inner
        if isinstance(test, ast.Compare):
            return self._decided_comparison(test)
        if isinstance(test, ast.Constant):
            return bool(test.value)
        if not isinstance(test, (ast.Name, ast.Attribute)):
            return None
        if isinstance(test, ast.Name) and len(self.steps.current.scope.bindings.get(test.id, ())) > 1:
            return None
        value = self.value(test)
        if value == External("typing.TYPE_CHECKING"):
            return False
        return bool(value.value) if isinstance(value, Constant) and isinstance(test, ast.Name) else None

    def _decided_comparison(self, test: ast.Compare) -> bool | None:
        if not (isinstance(test.left, ast.Name) and test.left.id == "__name__" and len(test.comparators) == 1):
            return None
        left, right = self.value(test.left), self.value(test.comparators[0])
        return left == right if isinstance(test.ops[0], ast.Eq) else None

    def attribute(self, base: Value, name: str) -> Value:
        """What an attribute of a value is."""
        if isinstance(base, (External, Module)):
            return self.program.attribute(base, name)
        if isinstance(base, Instance):
            return self._of_instance(base, name)
        if isinstance(base, Class):
            method = base.info.method(name)
            return Function(method) if method else base.info.attribute(name)
        if isinstance(base, Handle):
            method = base.info.method(name) if base.info else None
            return RemoteFunction(name, bool(method and method.is_generator))
        if isinstance(base, Awaitable):
            base.is_timed |= name == "cancel"
        if isinstance(base, Either):
            return joined([self.attribute(one, name) for one in base.values])
        return None

    def _of_instance(self, base: Instance, name: str) -> Value:
        if name in base.attributes:
            return base.attributes[name]
        if method := base.info.method(name):
            return None if External("property") in method.decorators else Function(method, base)
        value = base.info.attribute(name)
        if isinstance(value, Lock):
            return value.named(f"self.{name}") if base is self.shared else value
        return Instance(value.info, is_shared=True) if isinstance(value, Instance) else value

    def _of_Call(self, node: ast.Call) -> Value:
        called = node.func
        if not isinstance(called, ast.Attribute):
            value = self.value(called)
            return self.called(node, value, self.arguments(node))
        if called.attr == "remote":
            target = self.value(called.value)
            return self._method_call(node, called) if target == External("ray") else self._remote_call(node, target)
        if called.attr == "options":
            value = self.value(called.value)
            options = maker_of(node, self.arguments(node))
            return self._with_options(value, options)
        if called.attr == "bind":
            self.value(called.value)
            self.steps.escape(self.arguments(node).all)
            return None
        return self._method_call(node, called)

    def _with_options(self, value: Value, options: Maker) -> Value:
        if isinstance(value, (RemoteFunction, ActorClass, Either)):
            return remote_of(self, value, options)
        if not isinstance(value, External) and options.options.slots not in (UNSTATED, None):
            self.program.has_unknown_slots = True
        return value

    def arguments(self, node: ast.Call) -> Arguments:
        """The arguments of a call."""
        positional: list[Value] = []
        starred: list[Value] = []
        is_whole = True
        for one in node.args:
            value = self.value(one.value if isinstance(one, ast.Starred) else one)
            if not isinstance(one, ast.Starred):
                positional.append(value)
            elif isinstance(value, Items) and value.is_fixed:
                positional += value.elements
            else:
                starred.append(value)
        named: dict[str, Value] = {}
        for word in node.keywords:
            value = self.value(word.value)
            if word.arg is None:
                starred += [value.values] if isinstance(value, Mapping) else [value]
                is_whole = False
            else:
                named[word.arg] = value
        return Arguments(tuple(positional), named, tuple(starred), is_whole and not starred)

    def _remote_call(self, node: ast.Call, value: Value) -> Value:
        assert isinstance(node.func, ast.Attribute)
        target, arguments = node.func.value, self.arguments(node)
        for one in choices(value):
            if isinstance(one, ActorClass):
                one.info.created.add(one.options)
                one.info.created_last.add(one.options)
        names = names_of(value) or _syntactic_name(target)
        index = self.steps.add("call", node, names[0] if len(names) == 1 else "")
        draft = self.steps.drafts[index]
        for argument in arguments.all:
            if isinstance(argument, Refs):
                draft.takes.update(argument.calls)
        for starred in arguments.starred:
            draft.takes.update(call for refs in refs_in(starred) for call in refs.calls)
        self.steps.escape(
            one for one in (*arguments.positional, *arguments.named.values()) if not isinstance(one, Refs)
        )
        streams = bool(value) and all(isinstance(one, RemoteFunction) and one.streams for one in choices(value))
        return handle_of(value) or Refs(frozenset((index,)), streams=streams)

    def _method_call(self, node: ast.Call, called: ast.Attribute) -> Value:
        if _is_super(called.value):
            return self._super_call(node, called.attr)
        base, name = self.value(called.value), called.attr
        if isinstance(base, (External, Module, Instance, Class, Either, Handle)):
            return self.called(node, self.attribute(base, name), self.arguments(node))
        arguments = self.arguments(node)
        if isinstance(base, Lock):
            return self._lock_call(node, base, name, arguments)
        if isinstance(base, Items) and name in OF_ITEMS:
            self._note_shared(called.value, arguments.all if name in ADDING else ())
            return OF_ITEMS[name](self, node, base, arguments)
        if isinstance(base, Mapping):
            return mapping_method(base, name, arguments)
        if isinstance(base, (Refs, Awaitable, Elsewhere)):
            return self._future_call(node, base, name, arguments)
        return self._unknown_method(node, called, arguments)

    def _unknown_method(self, node: ast.Call, called: ast.Attribute, arguments: Arguments) -> Value:
        """A method of something unknown, which may be a list, an event loop or a group of tasks."""
        name = called.attr
        if name in ADDING and isinstance(called.value, (ast.Name, ast.Attribute)) and arguments.positional:
            made = Items()
            ADDING[name](self, node, made, arguments)
            self.assign(called.value, made)
            self.steps.escape(arguments.all)
        elif name in SUBMITTING and arguments.positional:
            submitted = elsewhere(self, node, arguments.after(int(name == "run_in_executor")))
            return submitted if name == "submit" else Awaitable((submitted,))
        elif name in TASKS:
            return Awaitable(arguments.positional[:1])
        elif name in RUNNING and arguments.positional:
            return self.run_async(arguments.positional[0], node, blocks=True)
        else:
            self.steps.escape(arguments.all)
        return None

    def _note_shared(self, target: ast.expr, added: Sequence[Value]) -> None:
        """What is added to a list that other functions know escapes."""
        is_captured = isinstance(target, ast.Name) and target.id in self.steps.current.captured
        if is_captured or isinstance(target, ast.Attribute):
            self.steps.escape(added)

    def _future_call(
        self, node: ast.Call, base: Refs | Awaitable | Elsewhere, name: str, arguments: Arguments
    ) -> Value:
        if name == "future":
            return base
        if name == "cancel" and isinstance(base, Awaitable):
            base.is_timed = True
        if name == "result" and isinstance(base, Refs):
            self.steps.wait(node, base, is_timed=arguments.limits(0))
            return None
        if name in ("result", "join") and isinstance(base, Elsewhere):
            with self.steps.in_time_limit(arguments.limits(0)):
                return self._run_elsewhere(base, "blocks")
        self.steps.escape(arguments.all)
        return None

    def _lock_call(self, node: ast.Call, lock: Lock, name: str, arguments: Arguments) -> Value:
        self.steps.escape(arguments.all)
        if lock.is_passed:
            self._use(node, lock, name)
        elif name == "release":
            self.release(node, lock)
        elif name == "acquire" and lock.is_async:
            return Awaitable((lock,))
        elif name == "acquire":
            may_fail = arguments.get(0, "blocking") not in (None, Constant(True))
            self.acquire(node, lock, is_timed=may_fail or arguments.limits(1))
        return None

    def _use(self, node: ast.expr, lock: Lock, name: str) -> None:
        """What a method of a queue, semaphore or event takes and gives."""
        for one in lock.uses.get(name, ()) if lock.name.startswith("self.") else ():
            part = f"{lock.name} {one.part}".strip()
            draft = self.steps.drafts[self.steps.add(one.kind, node, part, awaits=lock.is_async)]
            draft.count, draft.is_passed = one.count, True

    def acquire(self, node: ast.expr, lock: Lock, *, is_timed: bool = False) -> int | None:
        """The step in which a lock is taken; None for one that is only known here."""
        if not lock.name:
            return None
        acquired = self.steps.add("acquire", node, lock.name, awaits=lock.is_async, is_timed=is_timed)
        self.steps.drafts[acquired].count = lock.count
        return acquired

    def release(self, node: ast.expr, lock: Lock) -> int | None:
        """The step in which a lock is released."""
        return self.steps.add("release", node, lock.name) if lock.name else None

    def _super_call(self, node: ast.Call, name: str) -> Value:
        running = self.steps.current
        owner, first = (running.info.owner, running.info.parameters[:1]) if running.info else (None, [])
        instance = running.names.get(first[0]) if first else None
        arguments = self.arguments(node)
        if owner is None or not isinstance(instance, Instance):
            return self.called(node, None, arguments)
        mro = instance.info.mro
        later = mro[mro.index(owner) + 1 :] if owner in mro else ()
        method = next((one.methods[name] for one in later if name in one.methods), None)
        return self.called(node, Function(method, instance) if method else None, arguments)

    def called(self, node: ast.Call, value: Value, arguments: Arguments) -> Value:
        """What a call returns."""
        if isinstance(value, External) and (known := known_call(value.path)):
            return known(self, node, arguments)
        if isinstance(value, Function):
            if value.info.is_async and not value.info.is_generator:
                return Coroutine(value, arguments, node)
            return self.inline(value, arguments, node)
        if isinstance(value, Class):
            return self._made(node, value.info, arguments)
        if isinstance(value, Maker) and arguments.positional:
            return self.made_remote(arguments.positional[0], value)
        self.steps.escape(arguments.all)
        return None

    def _made(self, node: ast.Call, info: ClassInfo, arguments: Arguments) -> Value:
        made = Instance(info)
        if constructor := info.method("__init__"):
            self.inline(Function(constructor, made), arguments, node)
        else:
            self.steps.escape(arguments.all)
        return made

    def made_remote(self, value: Value, maker: Maker) -> Value:
        """The remote function or actor class that is made of a function or class."""
        made = remote_of(self, value, maker)
        if made is None and maker.options.slots != UNSTATED:
            self.program.has_unknown_slots = True
        return made

    def count_of(self, node: ast.expr) -> int | None:
        """The number that an expression is, None if it is not known."""
        value = self.value(node)
        number = value.value if isinstance(value, Constant) else None
        return number if isinstance(number, int) else None

    def run_async(self, value: Value, node: ast.expr, *, blocks: bool) -> Value:
        """Await a value; ``blocks`` if the caller's thread does nothing else meanwhile."""
        if isinstance(value, Refs):
            self.steps.wait(node, value, awaits=not blocks)
        elif isinstance(value, Coroutine):
            return self.inline(value.function, value.arguments, value.node, "blocks" if blocks else None)
        elif isinstance(value, Awaitable):
            return self._run_parts(value, node, blocks=blocks)
        elif isinstance(value, Elsewhere):
            return self._run_elsewhere(value, "frees")
        elif self.steps.held and value is None:
            self.steps.add("wait", node, awaits=not blocks)
        return None

    def _run_elsewhere(self, value: Elsewhere, effect: Effect) -> Value:
        """Wait for a call in another thread."""
        if isinstance(value.called, Function):
            return self.inline(value.called, value.arguments, value.node, effect)
        if value.called == External("ray.get"):
            is_timed = value.arguments.limits(1)
            self.steps.wait(value.node, value.arguments.get(0, ""), awaits=effect == "frees", is_timed=is_timed)
        return None

    def _run_parts(self, awaitable: Awaitable, node: ast.expr, *, blocks: bool) -> Value:
        parts = flattened(awaitable)
        refs: list[Value] = [one for one in parts if isinstance(one, Refs)]
        if refs:
            awaits, is_timed, is_any = not blocks, awaitable.is_timed, awaitable.is_any
            self.steps.wait(node, Items(refs), awaits=awaits, is_timed=is_timed, is_any=is_any)
        with self.steps.in_time_limit(awaitable.is_timed or awaitable.is_any):
            if len(parts) == 1:
                return self._run_part(parts[0], node, blocks=blocks)
            with self.steps.in_branch():  # one beside the other: no part follows another
                for part in parts:
                    self._run_part(part, node, blocks=blocks)
        return None

    def _run_part(self, part: Value, node: ast.expr, *, blocks: bool) -> Value:
        if isinstance(part, Lock):
            self.acquire(node, part)
            return None
        return None if isinstance(part, Refs) else self.run_async(part, node, blocks=blocks)

    def inline(self, function: Function, arguments: Arguments, node: ast.expr, effect: Effect | None = None) -> Value:
        """Walk a function of the program where it is called; what it returns."""
        info = function.info
        is_running = any(one.info is info for one in self.steps.running)
        if is_running or len(self.steps.running) > MAX_DEPTH or not self._calls_left:
            self.steps.escape((*arguments.all, function.owner))
            self._cuts += 1
            return None
        key = _key_of(function, arguments)
        if key is not None and key in self.program.inert:
            return self.program.inert[key]
        self._calls_left -= 1
        closure = function.closure if isinstance(function.closure, Running) else None
        path, since, cuts = (*self.steps.current.path, node), len(self.steps.drafts), self._cuts
        running = Running(info.scope, info.captured, info, closure, path, effect=effect)
        self._bind(running, function, arguments)
        self.steps.running.append(running)
        try:
            self.run_body(info.body)
        finally:
            self.steps.running.pop()
        returned = running.yielded if info.is_generator else joined(running.returned, since)
        is_inert = (
            len(self.steps.drafts) == since and self._cuts == cuts and isinstance(returned, (*CHOSEN, type(None)))
        )
        if is_inert and key is not None and key == _key_of(function, arguments):
            self.program.inert[key] = returned
        return returned

    def _bind(self, running: Running, function: Function, arguments: Arguments) -> None:
        """Give the parameters of a function their values."""
        info, given = function.info, [*arguments.positional]
        if function.owner is not None and info.is_bound:
            given.insert(0, function.owner)
        args = info.node.args
        defaults = dict(zip(info.parameters[::-1], args.defaults[::-1], strict=False))
        defaults.update((one.arg, node) for one, node in zip(args.kwonlyargs, args.kw_defaults, strict=True) if node)
        if arguments.is_whole:
            for name, node in defaults.items():
                running.names[name] = Constant(node.value) if isinstance(node, ast.Constant) else None
        running.names.update(zip(info.parameters, given, strict=False))
        running.names.update((name, value) for name, value in arguments.named.items() if name in info.scope.bindings)
        if args.vararg:
            running.names[args.vararg.arg] = Items(
                [*given[len(info.parameters) :], *map(element_of, arguments.starred)]
            )
        elif arguments.starred:
            self.steps.escape(arguments.starred)
        self.steps.escape(value for name, value in arguments.named.items() if name not in info.scope.bindings)
        self.steps.escape(value for name, value in running.names.items() if name in info.captured)

    def assign(self, target: ast.expr, value: Value) -> None:
        """Give a target of an assignment its value."""
        if isinstance(target, ast.Name):
            self._assign_name(target.id, value)
        elif isinstance(target, ast.Attribute):
            self._assign_attribute(target, value)
        elif isinstance(target, ast.Subscript):
            self._assign_item(target, value)
        elif isinstance(target, (ast.Tuple, ast.List)):
            self._unpack(target.elts, value)
        elif isinstance(target, ast.Starred):
            self.assign(target.value, Items([value]))

    def _assign_name(self, name: str, value: Value) -> None:
        running = self.steps.current
        if isinstance(value, Lock) and value.kind == "lock" and not value.name and running.scope.parent is None:
            value = value.named(running.module.qualified(name))
        running.names[name] = value
        if name in running.captured:
            self.steps.escape([value])

    def _assign_attribute(self, target: ast.Attribute, value: Value) -> None:
        base = self.value(target.value)
        if not isinstance(base, Instance):
            self.steps.escape([value])
            return
        if isinstance(value, Lock):
            value = None  # whether it is one each time is known of the class
            base.attributes.pop(target.attr, None)
        else:
            base.attributes[target.attr] = value
        if base.is_shared:
            self.steps.escape([value])

    def _assign_item(self, target: ast.Subscript, value: Value) -> None:
        base, key = self.value(target.value), self.value(target.slice)
        self._note_shared(target.value, [value, key])
        if isinstance(base, Items):
            base.add(value)
        elif isinstance(base, Mapping):
            base.keys.add(key)
            base.values.add(value)
        elif base is None and isinstance(target.value, (ast.Name, ast.Attribute)):
            self.steps.escape([value])
            self.assign(target.value, Mapping(Items([key]), Items([value])))
        else:
            self.steps.escape([value])

    def _unpack(self, targets: Sequence[ast.expr], value: Value) -> None:
        has_star = any(isinstance(one, ast.Starred) for one in targets)
        if isinstance(value, Items) and value.is_fixed and len(value.elements) == len(targets) and not has_star:
            for target, element in zip(targets, value.elements, strict=True):
                self.assign(target, element)
            return
        for target in targets:
            self.assign(target, element_of(value))


def _key_of(function: Function, arguments: Arguments) -> Hashable:
    """What decides what a call does; None if that is more than constants."""
    owner = function.owner
    given = (*arguments.positional, *arguments.named.values())
    is_plain = all(one is None or isinstance(one, Constant) for one in given) and arguments.is_whole
    if not is_plain or function.closure is not None or (owner and (owner.attributes or not owner.is_shared)):
        return None
    return function.info, owner and owner.info, tuple(map(repr, given)), tuple(arguments.named)


def _syntactic_name(target: ast.expr) -> Sequence[str]:
    """The name of a method of something unknown, as of ``self.other.ping.options(...)``."""
    while isinstance(target, ast.Call) and isinstance(target.func, ast.Attribute) and target.func.attr == "options":
        target = target.func.value
    return [target.attr] if isinstance(target, ast.Attribute) else []


def _is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"
