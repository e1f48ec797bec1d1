"""Threads and coroutines that reach the object of a wait, in real processes without Ray."""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dstack.observed.calls import Call, ProcessObject, Refs
from dstack.probes.node.probe import NodeProbe
from dstack.probes.node.waits.reachable_objects import (
    ACTOR,
    COROUTINE,
    MAX_DEPTH,
    MAX_REACHED,
    NOTHING,
    THREAD,
    Reached,
    Root,
    WaitsOn,
)
from tests.plain_calls import plain_call
from tests.processes import Child, running, wait_until
from tests.sampling import Plain, sample, target

HEAD = """
import asyncio, collections, functools, queue, sys, threading, time, types

def start(name, call, *arguments):
    threading.Thread(target=call, args=arguments, name=name, daemon=True).start()

class Holder:
    def __init__(self, item):
        self.item = item
    def take(self):
        self.item.get()
    def sleep(self):
        time.sleep(10_000)

class Slotted:
    __slots__ = ("item", "other")
    def __init__(self, item):
        self.item = item

def take(item):
    item.get()

def keep(value):
    time.sleep(10_000)

def goes_on(item):
    yield 1
    yield item
"""
READY = """
print("ready", flush=True)
time.sleep(10_000)
"""
LISTENING = """
import socket
one = socket.create_server(("127.0.0.1", 0))
print("port", one.getsockname()[1], flush=True)
other, _ = one.accept()
one.accept()
"""


@contextmanager
def program(tmp_path: Path, body: str) -> Iterator[Child]:
    """A running program of these lines; variables of ``main`` are no globals of its module."""
    file = tmp_path / "program.py"
    file.write_text(HEAD + textwrap.dedent(body))
    with running([sys.executable, str(file)], {}, tmp_path / "log") as child:
        child.wait_for_line("ready", deadline_s=30)
        yield child


def in_main(lines: str) -> str:
    """A main thread that keeps none of its variables: it ends, and the others continue."""
    body = textwrap.indent(textwrap.dedent(lines).strip(), "    ")
    return f"\ndef main():\n{body}\n\nmain()\n{READY}"


def calls_of(pid: int, *waiting: str) -> dict[str, Plain]:
    """The calls of the threads and coroutines with these names, once they wait."""
    probe = NodeProbe()
    answer: Plain = {}

    def found() -> dict[str, Plain] | None:
        answer.update(sample(target(pid), probe=probe))
        process = answer["processes"]["w"]
        names = {one["os_thread_id"]: one["name"] for one in process["threads"]}
        names.update({one["coroutine_id"]: one["name"] for one in process["coroutines"]})
        calls = {
            one["name"]: {**plain_call(one["call"]), "reached": reached(plain_call(one["call"]), names)}
            for one in (*process["threads"], *process["coroutines"])
            if one.get("call")
        }
        return calls if calls.keys() >= set(waiting) else None

    return wait_until(found, deadline_s=60, what=lambda: f"calls of {waiting} in {answer}")


def reached(call: Plain, names: dict[object, str]) -> set[str]:
    return {names[one] for one in (*call.get("reached_by", ()), *call.get("reached_by_coroutines", ()))}


HOLDERS = {
    "an argument": "start('other', keep, q)",
    "an attribute of self": "start('other', Holder(q).sleep)",
    "an attribute of an argument": "start('other', keep, Holder(q))",
    "a slot": "start('other', keep, Slotted(q))",
    "a variable of a closure": "start('other', lambda: (time.sleep(10_000), q))",
    "a list": "start('other', keep, [1, q])",
    "a tuple": "start('other', keep, (1, q))",
    "a dict": "start('other', keep, {'one': {2: q}})",
    "a key of a dict": "start('other', keep, {q: 1})",
    "a default dict": "start('other', keep, collections.defaultdict(int, item=q))",
    "a deque": "start('other', keep, collections.deque([1, q]))",
    "a set": "start('other', keep, {1, q})",
    "a named tuple": "start('other', keep, collections.namedtuple('Pair', 'one two')(1, q))",
    "a simple namespace": "start('other', keep, types.SimpleNamespace(item=q))",
    "a bound method": "start('other', keep, q.put)",
    "a partial function": "start('other', keep, functools.partial(q.put, 1))",
    "a function's closure": "start('other', keep, lambda: q.put(1))",
    "a generator": "g = goes_on(q); next(g); start('other', keep, g)",
    "a timer": "t = threading.Timer(10_000, q.put, [1]); t.name = 'other'; t.daemon = True; t.start()",
    "a queue of an executor": "s = queue.SimpleQueue(); s.put((q.put, 1)); start('other', keep, s)",
    "three references": "start('other', keep, Holder({'one': [q]}))",
}


@pytest.mark.parametrize("holder", HOLDERS.values(), ids=HOLDERS)
def test_a_thread_that_holds_the_queue_reaches_it(tmp_path: Path, holder: str) -> None:
    lines = f"q = queue.Queue()\nstart('waiter', take, q)\n{holder}\nstart('far', keep, 1)"

    with program(tmp_path, in_main(lines)) as child:
        call = calls_of(child.pid, "waiter")["waiter"]

    assert (call["kind"], call["what"], call["reached"]) == ("other", "queue.Queue.get", {"other"})


LISTENS = "server = await asyncio.start_server(print, '127.0.0.1', 0)"
NO_HOLDERS = {
    "nothing": "start('other', keep, 1)",
    "another queue": "start('other', keep, queue.Queue())",
    "four references": "start('other', keep, Holder([[[[q]]]]))",
    "a weak reference": "import weakref; start('other', keep, weakref.ref(q))",
    "a thread object": "t = threading.Thread(target=take, args=(q,), name='second', daemon=True); t.start(); "
    "start('other', keep, t)",
    "a thread that waits for the same": "start('second', take, q)",
}


@pytest.mark.parametrize("holder", NO_HOLDERS.values(), ids=NO_HOLDERS)
def test_no_other_thread_reaches_the_queue(tmp_path: Path, holder: str) -> None:
    lines = f"q = queue.Queue()\nstart('waiter', take, q)\n{holder}"

    with program(tmp_path, in_main(lines)) as child:
        call = calls_of(child.pid, "waiter")["waiter"]

    assert call["what"] == "queue.Queue.get"
    assert "reached_by" not in call
    assert "reached_by_coroutines" not in call
    assert "reached_by_actor" not in call


WAITS = {
    "queue.Queue.put": ("item = queue.Queue(1); item.put(1)", "item.put(2)"),
    "queue.Queue.join": ("item = queue.Queue(); item.put(1)", "item.join()"),
    "threading.Event.wait": ("item = threading.Event()", "item.wait()"),
    "threading.Semaphore.acquire": ("item = threading.Semaphore(0)", "item.acquire()"),
    "threading.Barrier.wait": ("item = threading.Barrier(2)", "item.wait()"),
    "threading.Condition.wait": ("item = threading.Condition()", "enter(item)"),
    "threading.Lock.acquire": ("item = threading.Lock(); item.acquire()", "item.acquire()"),
    "queue.SimpleQueue.get": ("item = queue.SimpleQueue()", "item.get()"),
}


@pytest.mark.parametrize("what", WAITS)
def test_every_kind_of_wait_is_searched_for(tmp_path: Path, what: str) -> None:
    make, wait = WAITS[what]
    enter = "def enter(condition):\n    with condition:\n        condition.wait()\n"
    lines = f"{make}\nstart('waiter', lambda: {wait})\nstart('other', keep, Holder(item))"

    with program(tmp_path, enter + in_main(lines)) as child:
        call = calls_of(child.pid, "waiter")["waiter"]

    assert (call["what"], call["reached"]) == (what, {"other"})


def test_a_timed_wait_keeps_its_timeout(tmp_path: Path) -> None:
    lines = """
    q = queue.Queue()
    start('waiter', lambda: q.get(timeout=9_000))
    start('other', keep, q)
    """

    with program(tmp_path, in_main(lines)) as child:
        call = calls_of(child.pid, "waiter")["waiter"]

    assert (call["timeout_s"], call["reached"]) == (9000.0, {"other"})


def test_a_global_of_a_module_is_reached_by_the_threads_in_it(tmp_path: Path) -> None:
    body = "shared = Holder(queue.Queue())\n" + in_main("start('waiter', shared.take)\nstart('other', keep, 1)")

    with program(tmp_path, body) as child:
        call = calls_of(child.pid, "waiter")["waiter"]

    assert call["reached"] == {"other", "MainThread"}


@pytest.mark.parametrize("load", ["import shared", "import between", "from between import shared as one"])
def test_a_global_of_another_module_is_reached_by_threads_of_its_importers(tmp_path: Path, load: str) -> None:
    (tmp_path / "shared.py").write_text("import queue\nitem = queue.Queue()\n")
    (tmp_path / "between.py").write_text("import shared\n")
    body = f"{load}\ntaken = sys.modules['shared'].item\n"
    lines = "start('waiter', taken.get)\nglobals().pop('taken')\nstart('other', keep, 1)"

    with program(tmp_path, body + in_main(lines)) as child:
        call = calls_of(child.pid, "waiter")["waiter"]

    assert call["reached"] == {"other", "MainThread"}


def test_a_join_is_ended_by_threads_that_get_from_the_same_queue(tmp_path: Path) -> None:
    lines = """
    q = queue.Queue()
    q.put(1)
    q.get()
    start('joins', q.join)
    start('gets', take, q)
    """

    with program(tmp_path, in_main(lines)) as child:
        calls = calls_of(child.pid, "joins", "gets")

    assert (calls["joins"]["reached"], calls["gets"]["reached"]) == ({"gets"}, {"joins"})


COROUTINES = """
class Actor:
    def __init__(self):
        self.queue, self.event, self.semaphore = asyncio.Queue(), asyncio.Event(), asyncio.Semaphore(0)
        self.condition, self.full = asyncio.Condition(), asyncio.Queue(1)
        self.full.put_nowait(1)

    async def in_condition(self):
        async with self.condition:
            await self.condition.wait()

    async def timed(self):
        await asyncio.wait_for(self.queue.get(), 9_000)

async def awaits(method):
    await method()

async def holds(value):
    await asyncio.sleep(10_000)

async def runs(made):
    tasks = made.pop()(lambda name, coroutine: asyncio.create_task(coroutine, name=name))
    await asyncio.sleep(10_000)

def run(make):
    start("loop", asyncio.run, runs([make]))
"""
AWAITS = {
    "asyncio.Queue.get": "actor.queue.get",
    "asyncio.Queue.put": "functools.partial(actor.full.put, 2)",
    "asyncio.Event.wait": "actor.event.wait",
    "asyncio.Semaphore.acquire": "actor.semaphore.acquire",
    "asyncio.Condition.wait": "actor.in_condition",
}


@pytest.mark.parametrize("what", AWAITS)
def test_a_coroutine_waits_for_coroutines_and_threads_that_reach_its_object(tmp_path: Path, what: str) -> None:
    lines = f"""
    actor = Actor()
    start('thread', keep, actor)
    run(lambda task: [task('waiter', awaits({AWAITS[what]})), task('other', holds(actor)), task('far', holds(1))])
    """

    with program(tmp_path, COROUTINES + in_main(lines)) as child:
        call = calls_of(child.pid, "waiter")["waiter"]

    assert (call["what"], call["reached"]) == (what, {"thread", "other"})


def test_coroutines_that_acquire_the_same_semaphore_do_not_release_it(tmp_path: Path) -> None:
    lines = """
    actor = Actor()
    run(lambda task: [task(f'waiter {i}', awaits(actor.semaphore.acquire)) for i in range(300)])
    """

    with program(tmp_path, COROUTINES + in_main(lines)) as child:
        calls = calls_of(child.pid, "waiter 0", "waiter 299")

    assert {call["what"] for name, call in calls.items() if name.startswith("waiter")} == {"asyncio.Semaphore.acquire"}
    assert all("reached_by_coroutines" not in call for name, call in calls.items() if name.startswith("waiter"))


def test_a_timed_wait_of_a_coroutine_does_not_end_another_for_the_same(tmp_path: Path) -> None:
    lines = """
    actor = Actor()
    run(lambda task: [task('waiter', awaits(actor.queue.get)), task('timed', actor.timed())])
    """

    with program(tmp_path, COROUTINES + in_main(lines)) as child:
        call = calls_of(child.pid, "waiter", "timed")["waiter"]

    assert call["reached"] == set()


def test_a_callback_that_the_loop_will_make_ends_the_wait(tmp_path: Path) -> None:
    lines = """
    def make(task):
        event = asyncio.Event()
        asyncio.get_running_loop().call_later(10_000, event.set)
        return [task('waiter', awaits(event.wait))]
    run(make)
    """

    with program(tmp_path, COROUTINES + in_main(lines)) as child:
        call = calls_of(child.pid, "waiter")["waiter"]

    assert call["reached"] == {"loop"}


@pytest.mark.parametrize(
    ("listens", "waits", "is_reached"),
    [("", "q.get()", True), (LISTENS, "q.get()", False), (LISTENS, "semaphore.acquire()", True)],
)
def test_an_event_from_a_socket_may_end_all_waits_except_for_locks(
    tmp_path: Path, listens: str, waits: str, is_reached: bool
) -> None:
    lines = f"""
    async def main():
        q, semaphore = asyncio.Queue(), asyncio.Semaphore(0)
        {listens or "pass"}
        tasks = [asyncio.create_task(holds((q, semaphore)), name='other'), asyncio.create_task({waits}, name='waiter')]
        await asyncio.sleep(10_000)
    start('loop', asyncio.run, main())
    """

    with program(tmp_path, COROUTINES + in_main(lines)) as child:
        call = calls_of(child.pid, "waiter")["waiter"]

    assert ("other" in call["reached"]) is is_reached


def test_a_stream_of_the_network_is_ended_by_no_coroutine(tmp_path: Path) -> None:
    lines = """
    async def main():
        reader = asyncio.StreamReader()
        tasks = [asyncio.create_task(holds(reader)), asyncio.create_task(reader.read(1), name='waiter')]
        await asyncio.sleep(10_000)
    start('loop', asyncio.run, main())
    """

    with program(tmp_path, COROUTINES + in_main(lines)) as child:
        call = calls_of(child.pid, "waiter")["waiter"]

    assert call["what"] == "asyncio.StreamReader.read"
    assert call["reached"] == set()


@contextmanager
def listening(tmp_path: Path) -> Iterator[tuple[Child, str]]:
    """A process that accepts one connection and never answers, and its port."""
    with running([sys.executable, "-c", LISTENING], {}, tmp_path / "server") as server:
        server.wait_for_line("port", deadline_s=30)
        yield server, (server.line("port ") or "").removeprefix("port ")


def test_a_coroutine_may_be_ended_by_what_its_event_loop_watches(tmp_path: Path) -> None:
    lines = """
    async def main():
        reader, writer = await asyncio.open_connection('127.0.0.1', PORT)
        task = asyncio.create_task(reader.read(1), name='waiter')
        await asyncio.sleep(10_000)
    start('loop', asyncio.run, main())
    """

    with listening(tmp_path) as (server, port), program(tmp_path, in_main(lines.replace("PORT", port))) as child:
        (end,) = calls_of(child.pid, "waiter")["waiter"]["ends"]

    assert (end.what, end.name, end.through) == ("TCP", f"127.0.0.1:{port}", "loop")
    assert [holder.pid for holder in end.holders] == [server.pid]


def test_a_connection_has_the_name_of_its_host_where_the_client_keeps_it(tmp_path: Path) -> None:
    lines = """
    import http.client, socket
    client = http.client.HTTPConnection("models.example.org")
    client.sock = socket.create_connection(("127.0.0.1", PORT))
    client.request("GET", "/")
    start('waiter', client.getresponse)
    """

    with listening(tmp_path) as (_, port), program(tmp_path, in_main(lines.replace("PORT", port))) as child:
        (end,) = calls_of(child.pid, "waiter")["waiter"]["ends"]

    assert end.name == f"models.example.org (127.0.0.1:{port})"


# Ray

ACTOR_PROGRAM = """
class Worker:
    def __init__(self, *actors):
        self.actors = {bytes([number]): actor for number, actor in enumerate(actors)}

def ray_has(*actors):
    sys.modules["ray._private.worker"] = module = types.ModuleType("ray._private.worker")
    module.global_worker = Worker(*actors)
"""


@pytest.mark.parametrize(
    ("actors", "is_reached"), [("Holder(q)", True), ("Holder({1: q})", True), ("Holder(1)", None), ("", None)]
)
def test_an_actor_that_holds_the_queue_reaches_it(tmp_path: Path, actors: str, is_reached: bool | None) -> None:
    lines = f"q = queue.Queue()\nray_has({actors})\nstart('waiter', take, q)"

    with program(tmp_path, ACTOR_PROGRAM + in_main(lines)) as child:
        call = calls_of(child.pid, "waiter")["waiter"]

    assert call.get("reached_by_actor") is is_reached
    assert call["reached"] == set()


def library(tmp_path: Path, file: str, code: str) -> str:
    """Lines that import a module with this code, from this file below a folder of libraries."""
    path = tmp_path / "site-packages" / file
    path.parent.mkdir(parents=True)
    path.write_text(textwrap.dedent(code))
    return f"sys.path.insert(0, {str(path.parent)!r})\nimport {path.stem} as library\n"


POLLER = """
import time
class OpState:
    def get_output_blocking(self, index):
        while True:
            time.sleep(0.01)
"""


def test_a_function_that_waits_by_sleeping_waits_for_its_object(tmp_path: Path) -> None:
    load = library(tmp_path, "ray/data/_internal/execution/streaming_executor_state.py", POLLER)
    lines = """
    state = library.OpState()
    start('waiter', state.get_output_blocking, None)
    start('executor', keep, Holder({1: state}))
    start('far', keep, 1)
    """

    with program(tmp_path, load + in_main(lines)) as child:
        found: list[Plain] = []

        def is_reached() -> bool:
            found.append(calls_of(child.pid, "waiter")["waiter"])
            return bool(found[-1]["reached"])

        wait_until(is_reached, deadline_s=30, what=lambda: "a reading between two sleeps of 0.01 s")

    call = found[-1]
    assert (call["kind"], call["what"], call["timeout_s"]) == ("other", "Ray Data's next output", 0.01)
    assert call["reached"] == {"executor"}


SESSION = """
class Session:
    def get_next(self):
        return self.queue.get(timeout=9_000)
"""


def test_a_training_session_waits_for_its_thread(tmp_path: Path) -> None:
    load = library(tmp_path, "ray/train/_internal/session.py", SESSION)
    lines = """
    session = library.Session()
    session.queue = queue.Queue()
    session.training_thread = threading.Thread(target=keep, args=(1,), name='training', daemon=True)
    session.training_thread.start()
    start('waiter', session.get_next)
    start('far', keep, 1)
    """

    with program(tmp_path, load + in_main(lines)) as child:
        call = calls_of(child.pid, "waiter")["waiter"]

    assert (call["what"], call["timeout_s"], call["reached"]) == ("queue.Queue.get", 9000.0, {"training"})


def test_waits_that_a_c_library_ends_are_not_searched(tmp_path: Path) -> None:
    load = library(tmp_path, "grpc/calls.py", "def wait(event):\n    event.wait()\n")
    lines = """
    event = threading.Event()
    start('waiter', library.wait, event)
    start('other', keep, event)
    """

    with program(tmp_path, load + in_main(lines)) as child:
        call = calls_of(child.pid, "waiter")["waiter"]

    assert (call["what"], call["reached"]) == ("threading.Event.wait", set())


# Bounds

LONGEST_S = 5.0


def test_very_many_objects_are_not_all_searched(tmp_path: Path) -> None:
    lines = """
    q = queue.Queue()
    big = [object() for _ in range(1_000_000)]
    deep = [[[Holder([i]) for i in range(100)] for _ in range(100)] for _ in range(20)]
    names = {str(i): Holder(i) for i in range(200_000)}
    start('waiter', take, q)
    start('big', keep, (big, deep, names, set(range(100_000)), collections.deque(range(500_000))))
    start('other', keep, q)
    """

    with program(tmp_path, in_main(lines)) as child:
        calls_of(child.pid, "waiter")
        began = time.process_time()
        call = calls_of(child.pid, "waiter")["waiter"]
        used_s = time.process_time() - began

    assert call["reached"] == {"other"}
    assert used_s < LONGEST_S


def test_thousands_of_coroutines_that_share_an_actor_are_read_quickly(tmp_path: Path) -> None:
    lines = """
    actor = Actor()
    actor.events = {number: asyncio.Event() for number in range(1_500)}
    run(lambda task: [
        *(task(f'waiter {i}', awaits(actor.semaphore.acquire)) for i in range(1_500)),
        *(task(f'event {i}', awaits(event.wait)) for i, event in actor.events.items()),
    ])
    """

    with program(tmp_path, COROUTINES + in_main(lines)) as child:
        calls_of(child.pid, "waiter 1499", "event 1499")
        began = time.process_time()
        calls_of(child.pid, "waiter 1499", "event 1499")
        used_s = time.process_time() - began

    assert used_s < 3 * LONGEST_S


QUEUE, HOLDER = 0x10, 0x20
GET = WaitsOn((QUEUE,), (QUEUE, "get"))
JOIN = WaitsOn((QUEUE,), (QUEUE, "join"))
WAITER: Root = (THREAD, 1)
CALL = Call(site="queue.Queue.get", frame=0, need=ProcessObject(object_id="0x10"))
BY_TWO = ProcessObject(object_id="0x10", reached_by=(2,))


def test_a_call_that_needs_no_object_is_unchanged() -> None:
    call = Call(site="ray.get", frame=0, need=Refs(refs=("aa",)))

    assert Reached({}, {QUEUE: [(THREAD, 2)]}).with_reach(WAITER, call, GET) is call


def test_every_kind_of_reaching_vertex_is_returned() -> None:
    roots = {QUEUE: [WAITER, (THREAD, 3)], HOLDER: [(THREAD, 2), (COROUTINE, 0xAB), (ACTOR, HOLDER)]}

    found = Reached({QUEUE: [HOLDER]}, roots, {WAITER: GET}).with_reach(WAITER, CALL, GET).need

    assert found == ProcessObject(
        object_id="0x10", reached_by=(2, 3), reached_by_coroutines=("0xab",), reached_by_actor=True
    )


def test_a_waiter_whose_wait_is_new_does_not_reach_its_own_object() -> None:
    assert Reached({}, {QUEUE: [WAITER]}).with_reach(WAITER, CALL, GET).need == CALL.need


def test_waiters_for_the_same_object_do_not_end_the_wait() -> None:
    other: Root = (THREAD, 2)
    roots = {QUEUE: [WAITER, other]}

    same = Reached({}, roots, {WAITER: GET, other: GET}).with_reach(WAITER, CALL, GET).need
    another = Reached({}, roots, {WAITER: GET, other: JOIN}).with_reach(WAITER, CALL, GET).need

    assert (same, another) == (CALL.need, BY_TWO)


def test_a_call_without_objects_is_reached_by_nothing() -> None:
    assert Reached({}, {0: [(THREAD, 2)]}).with_reach(WAITER, CALL, NOTHING).need == CALL.need


@pytest.mark.parametrize(("steps", "is_reached"), [(MAX_DEPTH, True), (MAX_DEPTH + 1, False)])
def test_a_search_backwards_ends(steps: int, is_reached: bool) -> None:
    holders = {QUEUE + step: [QUEUE + step + 1] for step in range(steps)}

    found = Reached(holders, {QUEUE + steps: [(THREAD, 2)]}).with_reach(WAITER, CALL, GET).need

    assert found == (BY_TWO if is_reached else CALL.need)


def test_a_search_through_a_cycle_of_holders_ends() -> None:
    found = Reached({QUEUE: [HOLDER], HOLDER: [QUEUE]}, {HOLDER: [(THREAD, 2)]}).with_reach(WAITER, CALL, GET).need

    assert found == BY_TWO


@pytest.mark.parametrize(("count", "said"), [(MAX_REACHED, MAX_REACHED), (MAX_REACHED + 1, 0)])
def test_an_object_that_too_many_vertices_reach_has_no_answer(count: int, said: int) -> None:
    roots: list[Root] = [(COROUTINE, 8 * number) for number in range(count)]

    found = Reached({}, {QUEUE: roots}).with_reach(WAITER, CALL, GET).need

    assert isinstance(found, ProcessObject)
    assert len(found.reached_by_coroutines) == said
    assert (found == CALL.need) is not bool(said)


def test_thousands_of_coroutines_that_share_thousands_of_objects_are_searched_quickly() -> None:
    count = 5_000
    waiters: list[Root] = [(COROUTINE, 8 * number) for number in range(count)]
    waits = {root: WaitsOn((1_000_000 + at,), (1_000_000 + at, "wait")) for at, root in enumerate(waiters)}
    holders = {1_000_000 + at: [HOLDER] for at in range(count)}
    reached = Reached(holders, {HOLDER: waiters}, waits)

    began = time.process_time()
    found = [reached.with_reach(root, CALL, waits_on) for root, waits_on in waits.items()]

    assert found == [CALL] * count
    assert time.process_time() - began < 20.0
