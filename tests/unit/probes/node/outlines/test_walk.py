"""What the source of a function says: its calls, waits and locks, by the shape of the code around them."""

import os
import textwrap
from pathlib import Path

import pytest

from dstack.observed.outlines import ProgramOutline, Step
from dstack.probes.node.outlines import outline_of_files
from tests.paths import ROOT

HEAD = """
import asyncio, threading, time
import concurrent.futures
import ray

@ray.remote
def f(*args): ...

@ray.remote
def g(*args): ...

def plain(*args): ...
"""
FLAGS = ("escapes", "awaits", "is_timed", "is_any", "is_optional")
WORDS = {"is_timed": "timed", "is_any": "any", "is_optional": "optional"}


def outline_of(tmp_path: Path, source: str) -> ProgramOutline:
    path = tmp_path / "app.py"
    path.write_text(HEAD + textwrap.dedent(source))
    return outline_of_files([str(path)])


def shown(step: Step) -> str:
    """A step in few words: ``wait 0 1 awaits loop``."""
    parts = [step.kind, step.name, *map(str, step.of)]
    parts += [f"takes {' '.join(map(str, step.takes))}"] if step.takes else []
    parts += [WORDS.get(flag, flag) for flag in FLAGS if getattr(step, flag)]
    return " ".join([*filter(None, parts), *["loop"] * len(step.loops)])


def steps_of(outline: ProgramOutline, name: str) -> list[str]:
    (found,) = (one for one in outline.functions if one.name == name)
    return [shown(step) for step in found.steps]


@pytest.mark.parametrize(
    ("body", "steps"),
    [
        # Waits for refs
        ("ray.get(f.remote())", ["call f", "wait 0"]),
        ("f.remote()", ["call f"]),
        ("a = f.remote()\nb = g.remote()\nray.get([a, b])", ["call f", "call g", "wait 0 1"]),
        ("a, b = f.remote(), g.remote()\nray.get(b)", ["call f", "call g", "wait 1"]),
        ("both = [f.remote(), g.remote()]\nray.get(both[1])", ["call f", "call g", "wait 1"]),
        ("a = f.remote()\nray.get(g.remote(a))", ["call f", "call g takes 0", "wait 1"]),
        ("ray.get(g.remote(f.remote(), key=f.remote()))", ["call f", "call f", "call g takes 0 1", "wait 2"]),
        ("ray.get(g.remote([f.remote()]))", ["call f escapes", "call g", "wait 1"]),
        ("refs = [f.remote(i) for i in range(3)]\nray.get(g.remote(*refs))",
         ["call f loop", "call g takes 0", "wait 1"]),
        ("ray.get(x.ping.options(name='n').remote())", ["call ping", "wait 0"]),
        ("ray.get(ray.remote(plain).options(num_cpus=2).remote())", ["call plain", "wait 0"]),
        ("ray.get(x)", ["wait"]),
        ("ray.get(ray.put(1))", []),
        ("ref = f.remote()\nreturn ref", ["call f escapes"]),
        ("plain2(f.remote())", ["call f escapes"]),
        ("x.attribute = f.remote()", ["call f escapes"]),
        ("ref = f.remote()\nray.cancel(ref)\nprint(ref)", ["call f timed"]),
        ("f.bind(g.remote())", ["call g escapes"]),
        # Containers and loops
        ("refs = []\nfor i in x:\n    refs.append(f.remote(i))\nray.get(refs)", ["call f loop", "wait 0"]),
        ("refs = [f.remote(i) for i in x]\nfor ref in refs:\n    ray.get(ref)", ["call f loop", "wait 0 loop"]),
        ("print([ray.get(f.remote(i)) for i in x])", ["call f loop", "wait 0 loop"]),
        ("refs = {}\nfor i in x:\n    refs[i] = f.remote(i)\nray.get(list(refs.values()))", ["call f loop", "wait 0"]),
        ("refs = {f.remote(i): i for i in x}\nray.get(list(refs))", ["call f loop", "wait 0"]),
        ("ref = None\nfor i in x:\n    ray.get(ref)\n    ref = f.remote()", ["wait 1 loop", "call f loop"]),
        ("ref = f.remote()\nfor i in x:\n    ref = g.remote(ref)\nray.get(ref)",
         ["call f", "call g takes 0 1 loop", "wait 1"]),
        ("for i, ref in enumerate([f.remote(), g.remote()]):\n    ray.get(ref)", ["call f", "call g", "wait 0 1 loop"]),
        ("refs = [f.remote(), g.remote()]\nray.get(refs.pop())", ["call f", "call g", "wait 0 1 optional"]),
        ("refs = [f.remote()] + [g.remote()]\nray.get(refs[x])", ["call f", "call g", "wait 0 1 optional"]),
        # Time limits and some of several values
        ("ray.get(f.remote(), timeout=5)", ["call f", "wait 0 timed"]),
        ("ray.get(f.remote(), timeout=None)", ["call f", "wait 0"]),
        ("ray.get(f.remote(), timeout=-1)", ["call f", "wait 0"]),
        ("ray.get(f.remote(), timeout=x)", ["call f", "wait 0 timed"]),
        ("ray.wait([f.remote()])", ["call f", "wait 0"]),
        ("ray.wait([f.remote(), g.remote()])", ["call f", "call g", "wait 0 1 timed any"]),
        ("ray.wait([f.remote(), g.remote()], num_returns=2)", ["call f", "call g", "wait 0 1"]),
        ("ray.wait([f.remote(), ray.put(1)], num_returns=2)", ["call f", "wait 0"]),
        ("refs = [f.remote() for i in x]\nray.wait(refs, num_returns=len(refs))", ["call f loop", "wait 0"]),
        ("refs = [f.remote() for i in x]\nray.wait(refs, num_returns=len(refs), timeout=1)",
         ["call f loop", "wait 0 timed"]),
        (
            "refs = [f.remote() for i in x]\nwhile refs:\n    done, refs = ray.wait(refs)\n    ray.get(done)",
            ["call f loop", "wait 0 timed any loop"],
        ),
        ("f.remote().future().result()", ["call f", "wait 0"]),
        ("f.remote().future().result(timeout=3)", ["call f", "wait 0 timed"]),
        ("ref = f.remote()\nready, _ = ray.wait([ref], timeout=1)\nif ready:\n    ray.get(ref)",
         ["call f", "wait 0 timed", "wait 0 timed optional"]),
        ("ref = f.remote()\nwhile True:\n    ready, _ = ray.wait([ref], timeout=1)\n    if ready: break\nray.get(ref)",
         ["call f", "wait 0 timed loop", "wait 0 timed"]),
        ("a, b = f.remote(), g.remote()\nray.wait([a, b])\nray.get([a, b])",
         ["call f", "call g", "wait 0 1 timed any", "wait 0 1"]),
        ("ref = f.remote()\nif x: ray.cancel(ref)\nray.get(ref)", ["call f timed", "wait 0"]),
        ("ref = f.remote()\nthreading.Timer(5, ray.cancel, [ref]).start()\nray.get(ref)",
         ["call f escapes timed", "wait 0"]),
        # Branches
        ("if x:\n    ray.get(f.remote())", ["call f optional", "wait 0 optional"]),
        ("if x:\n    return\nray.get(f.remote())", ["call f optional", "wait 0 optional"]),
        ("if x:\n    raise ValueError\nray.get(f.remote())", ["call f optional", "wait 0 optional"]),
        ("ref = f.remote() if x else g.remote()\nray.get(ref)", ["call f optional", "call g optional", "wait 0 1"]),
        ("a, b = f.remote(), g.remote()\nray.get(a if x else b)", ["call f", "call g", "wait 0 1 optional"]),
        ("if x:\n    ref = f.remote()\nelse:\n    ref = g.remote()\nray.get(ref)",
         ["call f optional", "call g optional", "wait 0 1"]),
        ("for i in x:\n    if i:\n        continue\n    ray.get(f.remote())\nray.get(g.remote())",
         ["call f optional loop", "wait 0 optional loop", "call g", "wait 2"]),
        ("try:\n    ray.get(f.remote())\nexcept ValueError:\n    ray.get(g.remote())\nray.get(f.remote())",
         ["call f", "wait 0", "call g optional", "wait 2 optional", "call f", "wait 4"]),
        ("x and ray.get(f.remote())", ["call f optional", "wait 0 optional"]),
        ("match x:\n    case 1:\n        ray.get(f.remote())", ["call f optional", "wait 0 optional"]),
        # Streams
        ("for ref in f.options(num_returns='streaming').remote():\n    ray.get(ref)", ["call f", "wait 0 loop"]),
        ("a, b = f.options(num_returns=2).remote()\nray.get(a)", ["call f", "wait 0"]),
        # Threads and executors
        ("t = threading.Thread(target=ray.get, args=(f.remote(),))\nt.start()\nt.join()", ["call f escapes", "wait 0"]),
        ("threading.Thread(target=ray.get, args=(f.remote(),)).start()", ["call f escapes"]),
        ("ref = f.remote()\nt = threading.Thread(target=lambda: ray.get(ref))\nt.start()\nt.join(5)",
         ["call f escapes", "wait 0 timed"]),
        ("x.submit(ray.get, f.remote()).result()", ["call f escapes", "wait 0"]),
        ("def h(i):\n    return ray.get(f.remote(i))\nx.submit(h, 1)", []),
        ("def h(i):\n    return ray.get(f.remote(i))\nh(1)", ["call f", "wait 0"]),
    ],
)  # fmt: skip
def test_steps_of_a_function(tmp_path: Path, body: str, steps: list[str]) -> None:
    outline = outline_of(tmp_path, "def run(x):\n" + textwrap.indent(body, "    "))

    assert steps_of(outline, "run") == steps
    assert not outline.why_partial


@pytest.mark.parametrize(
    ("body", "steps"),
    [
        ("await f.remote()", ["call f", "wait 0 awaits"]),
        ("await asyncio.gather(f.remote(), g.remote())", ["call f", "call g", "wait 0 1 awaits"]),
        ("await asyncio.gather(*[f.remote(i) for i in x])", ["call f loop", "wait 0 awaits"]),
        ("await asyncio.wait_for(f.remote(), 5)", ["call f", "wait 0 awaits timed"]),
        ("await asyncio.wait_for(f.remote(), None)", ["call f", "wait 0 awaits"]),
        ("await asyncio.wait([f.remote(), g.remote()])", ["call f", "call g", "wait 0 1 awaits"]),
        ("await asyncio.wait([f.remote(), g.remote()], return_when=asyncio.FIRST_COMPLETED)",
         ["call f", "call g", "wait 0 1 awaits timed any"]),
        ("await asyncio.wait([f.remote()], timeout=1)", ["call f", "wait 0 awaits timed"]),
        ("await asyncio.wrap_future(f.remote().future())", ["call f", "wait 0 awaits"]),
        ("async with asyncio.timeout(5):\n    await f.remote()", ["call f", "wait 0 awaits timed"]),
        ("ray.get(f.remote())", ["call f", "wait 0"]),
        ("async def h():\n    await f.remote()\nawait h()", ["call f", "wait 0 awaits"]),
        ("async def h():\n    await f.remote()\nt = asyncio.create_task(h())\nawait t", ["call f", "wait 0 awaits"]),
        ("async def h():\n    await f.remote()\nasyncio.create_task(h())", []),
        ("async def h(ref):\n    await ref\nawait asyncio.gather(h(f.remote()), h(g.remote()))",
         ["call f", "call g", "wait 0 awaits optional", "wait 1 awaits optional"]),
        ("async def h():\n    await f.remote()\nt = asyncio.create_task(h())\nplain2(5, t.cancel)\nawait t",
         ["call f", "wait 0 awaits timed"]),
        ("await asyncio.to_thread(ray.get, f.remote())", ["call f escapes", "wait 0 awaits"]),
        ("def h():\n    ray.get(f.remote())\nawait asyncio.to_thread(h)", ["call f", "wait 0 awaits"]),
        ("async for ref in f.options(num_returns='streaming').remote():\n    await ref",
         ["call f", "wait 0 awaits loop"]),
        ("async for item in x.items.remote():\n    print(item)", ["call items", "wait 0 awaits loop"]),
        ("await asyncio.sleep(1)", []),
    ],
)  # fmt: skip
def test_steps_of_an_async_function(tmp_path: Path, body: str, steps: list[str]) -> None:
    outline = outline_of(tmp_path, "async def run(x):\n" + textwrap.indent(body, "    "))

    assert steps_of(outline, "run") == steps


@pytest.mark.parametrize(
    ("source", "steps"),
    [
        ("def h():\n    return f.remote()\ndef run():\n    ray.get(h())", ["call f", "wait 0"]),
        ("def h(ref):\n    return ray.get(ref)\ndef run():\n    h(f.remote())", ["call f", "wait 0"]),
        ("def h(x, ref=None):\n    return ray.get(ref)\ndef run():\n    h(1, ref=f.remote())", ["call f", "wait 0"]),
        ("def h(*refs):\n    ray.get(list(refs))\ndef run():\n    h(f.remote(), g.remote())",
         ["call f", "call g", "wait 0 1"]),
        ("def h(a, b, c):\n    if c: return a\n    return b\ndef run(c):\n    ray.get(h(f.remote(), g.remote(), c))",
         ["call f", "call g", "wait 0 1 optional"]),
        ("def h(back):\n    if back:\n        ray.get(f.remote())\ndef run():\n    h(False)\n    h(True)",
         ["call f", "wait 0"]),
        ("def h(n):\n    ray.get(f.remote())\n    h(n - 1)\ndef run():\n    h(3)", ["call f", "wait 0"]),
        ("def h():\n    if x: return\n    f.remote()\ndef run():\n    h()\n    ray.get(g.remote())",
         ["call f optional", "call g", "wait 1"]),
        ("def h():\n    yield f.remote()\ndef run():\n    ray.get(list(h()))", ["call f", "wait 0"]),
        ("async def h():\n    await f.remote()\ndef run():\n    asyncio.run(h())", ["call f", "wait 0"]),
        ("async def h():\n    await f.remote()\ndef run(loop):\n    loop.run_until_complete(h())",
         ["call f", "wait 0"]),
        ("later = ray.remote(plain)\ndef run():\n    ray.get(later.remote())", ["call plain", "wait 0"]),
        ("from ray import get as fetch\ndef run():\n    fetch(f.remote())", ["call f", "wait 0"]),
        ("import ray as r\ndef run():\n    r.get(f.remote())", ["call f", "wait 0"]),
        ("class Box:\n    def __init__(self): self.ref = f.remote()\n    def open(self): return ray.get(self.ref)\n"
         "def run():\n    Box().open()", ["call f", "wait 0"]),
        ("class Cashier: ...\ndef run():\n    c = ray.remote(Cashier).options(name='c').remote()\n"
         "    ray.get(c.pay.remote())",
         ["call Cashier", "call pay", "wait 1"]),
        ("LOCK = threading.Lock()\ndef run():\n    with LOCK:\n        ray.get(f.remote())",
         ["acquire app.LOCK", "call f", "wait 1", "release app.LOCK"]),
        ("LOCK = threading.Lock()\ndef run(x):\n    if x:\n        return\n    with LOCK:\n        return f.remote()",
         ["acquire app.LOCK optional", "call f escapes optional", "release app.LOCK optional"]),
        ("LOCK = threading.Lock()\ndef run():\n    LOCK.acquire(timeout=1)\n"
         "    try:\n        return 1\n    finally:\n        LOCK.release()",
         ["acquire app.LOCK timed", "release app.LOCK"]),
        ("LOCK = asyncio.Lock()\nasync def run():\n    async with LOCK:\n        await f.remote()",
         ["acquire app.LOCK awaits", "call f", "wait 1 awaits", "release app.LOCK"]),
        ("LOCK = threading.Lock()\nasync def run():\n    with LOCK:\n        await asyncio.sleep(1)",
         ["acquire app.LOCK", "wait awaits", "release app.LOCK"]),
        ("LOCK = threading.Lock()\ndef run():\n    LOCK.acquire()\n    ray.get(f.remote())", ["call f", "wait 0"]),
        ("LOCK = threading.Lock()\ndef run():\n    LOCK.release()\n    LOCK.acquire()\n"
         "    ray.get(f.remote())\n    LOCK.release()",
         ["acquire app.LOCK", "call f", "wait 1", "release app.LOCK"]),
        ("ROOM = threading.Semaphore(2)\ndef run():\n    with ROOM: ...", []),
        ("def run(lock):\n    with lock:\n        ray.get(f.remote())", ["call f", "wait 0"]),
    ],
)  # fmt: skip
def test_steps_with_helpers_and_locks(tmp_path: Path, source: str, steps: list[str]) -> None:
    assert steps_of(outline_of(tmp_path, source), "run") == steps


ACTORS = """
class Base:
    def __init__(self):
        self.left = threading.Lock()
        self.task = ray.remote(plain)
    def go(self, other):
        with self.left:
            return self.wait_for(other.ping.remote())
    def wait_for(self, ref):
        return ray.get(ref)
    def later(self):
        self.ref = f.remote()
        self.refs.append(g.remote())
        ray.get(self.ref)
        ray.get(self.refs)
        ray.get(self.task.remote())

@ray.remote
class Derived(Base):
    def wait_for(self, ref):
        return super().wait_for(ref) if ref else ray.get(ref, timeout=1)
"""


def test_a_method_is_that_of_the_actor_and_not_of_its_base(tmp_path: Path) -> None:
    outline = outline_of(tmp_path, ACTORS)

    assert steps_of(outline, "Base.go") == ["acquire self.left", "call ping", "wait 1", "release self.left"]
    assert steps_of(outline, "Derived.go") == [
        "acquire self.left",
        "call ping",
        "wait 1 optional",
        "wait 1 timed optional",
        "release self.left",
    ]


def test_what_an_object_keeps_is_followed_and_escapes(tmp_path: Path) -> None:
    steps = steps_of(outline_of(tmp_path, ACTORS), "Base.later")

    assert steps == ["call f escapes", "call g escapes", "wait 0", "wait 1", "call plain", "wait 4"]


@pytest.mark.parametrize(
    ("source", "slots"),
    [
        ("@ray.remote\nclass A:\n    def m(self): ...", 1),
        ("@ray.remote\nclass A:\n    async def m(self): ...", 1000),
        ("class Base:\n    async def m(self): ...\n@ray.remote\nclass A(Base): ...", 1000),
        ("@ray.remote(max_concurrency=3)\nclass A:\n    async def m(self): ...", 3),
        ("SLOTS = 4\n@ray.remote(max_concurrency=SLOTS)\nclass A: ...", 4),
        ("@ray.remote(max_concurrency=plain())\nclass A: ...", None),
        ("@ray.remote\nclass A: ...\ndef run():\n    A.options(max_concurrency=2).remote()", 2),
        ("@ray.remote\nclass A: ...\ndef run():\n    A.remote()\n    A.options(max_concurrency=2).remote()", None),
        ("@ray.remote\nclass A: ...\ndef run(o):\n    A.options(**o).remote()", None),
        ("@ray.remote\nclass A: ...\ndef run():\n    A.options(name='a').remote()", 1),
        ("class A: ...\ndef run():\n    ray.remote(max_concurrency=2)(A).remote()", 2),
        ("class A: ...\ndef run(kind):\n    ray.remote(kind).options(max_concurrency=2).remote()", None),
        ("from library import Base\n@ray.remote\nclass A(Base): ...", None),
        ("@plain\n@ray.remote\nclass A: ...", None),
    ],
)  # fmt: skip
def test_slots_of_an_actor_class(tmp_path: Path, source: str, slots: int | None) -> None:
    (found,) = (one for one in outline_of(tmp_path, source).classes if one.name == "A")

    assert found.slots == slots


@pytest.mark.parametrize(
    ("options", "group", "expected"),
    [
        ("concurrency_groups={'io': 2}", "'io'", ((("io", 2),), False)),
        ("concurrency_groups=GROUPS", "'io'", ((), True)),
        ("concurrency_groups={'io': 2}", "NAME", ((), True)),
        ("num_cpus=1", "'io'", ((), True)),
    ],
    ids=["literals", "computed groups", "computed name", "groups of nowhere"],
)
def test_concurrency_groups_and_their_methods_are_read_if_they_are_literals(
    options: str, group: str, expected: object, tmp_path: Path
) -> None:
    source = f"""
    @ray.remote({options})
    class A:
        @ray.method(concurrency_group={group})
        def read(self): ...
        def write(self): ...
    """

    found = outline_of(tmp_path, source)

    assert (found.classes[0].groups, found.classes[0].has_groups) == expected
    if group == "'io'":
        assert [one.group for one in found.functions if one.name.startswith("A.")] == ["io", ""]


SHARED = """
import queue
@ray.remote
class A:
    def __init__(self): self.jobs = {made}
    {methods}
"""
TAKES, GIVES = "acquire self.jobs", "release self.jobs"


@pytest.mark.parametrize(
    ("made", "methods", "steps"),
    [
        ("queue.Queue()", "def get(self): return self.jobs.get()", [TAKES]),
        ("queue.SimpleQueue()", "def put(self, job): self.jobs.put(job)", [GIVES]),
        ("queue.Queue(maxsize=2)", "def put(self, job): self.jobs.put(job)", ["acquire self.jobs room", GIVES]),
        ("queue.LifoQueue(2)", "def get(self): return self.jobs.get()", [TAKES, "release self.jobs room"]),
        ("asyncio.Queue()", "async def get(self): return await self.jobs.get()", [f"{TAKES} awaits"]),
        ("asyncio.Event()", "async def enter(self): await self.jobs.wait()", [f"{TAKES} awaits", GIVES]),
        ("threading.Event()", "def open(self): self.jobs.set()", [GIVES]),
        ("threading.Semaphore(2)", "def enter(self): self.jobs.acquire()", [TAKES]),
        ("threading.Semaphore(2)", "def f(self):\n        with self.jobs: ...", [TAKES, GIVES]),
        ("queue.Queue()", "def get(self):\n        while True: self.jobs.get()", [f"{TAKES} loop"]),
        # What is not known
        ("queue.Queue(SIZE)", "def get(self): return self.jobs.get()", []),
        ("queue.Queue()", "def get(self): return self.jobs.get(timeout=1)", []),
        ("queue.Queue()", "def get(self): return self.jobs.get_nowait()", []),
        ("queue.Queue()", "def get(self): return self.jobs.get()\n    def is_idle(self): return self.jobs.empty()", []),
        ("queue.Queue()", "def get(self): return self.jobs.get()\n    def give(self): return self.jobs", []),
        ("queue.Queue()", "def get(self): return self.jobs.get()\nother.jobs = []", []),
        ("queue.Queue()", "def get(self): return self.jobs.get()\n    def more(self): return self.get()", []),
        ("queue.Queue()", "def get(self): return list(map(lambda at: self.jobs.get(), 'ab'))", []),
        ("asyncio.Queue()", "async def get(self): return await asyncio.wait_for(self.jobs.get(), 1)", []),
        ("threading.Event()", "def enter(self): self.jobs.wait()\n    def close(self): self.jobs.clear()", []),
        (
            "threading.Semaphore(2)",
            "def f(self):\n        with self.jobs: ...\n    def g(self): self.jobs.release()",
            [],
        ),
    ],
)
def test_what_calls_pass_to_each_other_is_known_if_all_its_uses_are(
    made: str, methods: str, steps: list[str], tmp_path: Path
) -> None:
    found = outline_of(tmp_path, SHARED.format(made=made, methods=methods))

    assert [shown(step) for one in found.functions if one.name.startswith("A.") for step in one.steps] == steps
    assert not found.why_partial


@pytest.mark.parametrize(
    ("creation", "slots", "groups"),
    [
        ("ray.remote(concurrency_groups={'io': 2}, max_concurrency=3)(A).remote()", 3, (("io", 2),)),
        ("ray.remote(A).options(concurrency_groups={'io': 2}).remote()", 1, (("io", 2),)),
        ("ray.remote(concurrency_groups=GROUPS)(A).remote()", 1, None),
        ("ray.remote(**OPTIONS)(A).remote()", None, None),
        ("ray.remote(A).remote()", 1, None),
        ("ray.remote(concurrency_groups={'io': 2})(A).remote()\nray.remote(A).remote()", None, None),
    ],
)
def test_options_that_are_given_at_creation_count(
    creation: str, slots: int | None, groups: object, tmp_path: Path
) -> None:
    source = f"class A:\n    @ray.method(concurrency_group='io')\n    def read(self): ...\n{creation}\n"
    source += "@ray.remote\ndef task():\n    " + creation.replace("\n", "\n    ")

    (found,) = outline_of(tmp_path, source).classes
    assert (found.slots, None if found.has_groups else found.groups) == (slots, groups)


def test_concurrency_groups_are_not_certain_if_a_call_names_one(tmp_path: Path) -> None:
    source = """
    @ray.remote(concurrency_groups={'io': 2})
    class A:
        @ray.method(concurrency_group='io')
        def read(self): ...
    ray.get(A.remote().read.options(
        concurrency_group='io').remote())
    """

    (found,) = outline_of(tmp_path, source).classes
    assert found.has_groups


def test_locks_that_are_assigned_together_are_two_locks(tmp_path: Path) -> None:
    source = """
    import threading
    class A:
        def __init__(self):
            self.left, self.right = threading.Lock(), threading.Lock()
        def both(self):
            with self.left, self.right: ray.get(f.remote())
    """

    (both,) = [one for one in outline_of(tmp_path, source).functions if one.name == "A.both"]
    assert [step.name for step in both.steps if step.kind == "acquire"] == ["self.left", "self.right"]


def test_functions_of_one_name_that_differ_are_left_out(tmp_path: Path) -> None:
    source = """
    def one():
        @ray.remote
        def task(): ray.get(f.remote())
        @ray.remote
        def same(): ...
    def other():
        @ray.remote
        def task(): ...
        @ray.remote
        def same(): ...
    """

    names = [one.name for one in outline_of(tmp_path, source).functions]

    assert "task" not in names
    assert names.count("same") == 1


def test_a_remote_function_counts_before_a_helper_of_its_name(tmp_path: Path) -> None:
    source = "class Helper:\n    @ray.remote\n    def task(): ray.get(f.remote())\ndef task(): ..."

    assert steps_of(outline_of(tmp_path, source), "task") == ["call f", "wait 0"]


def test_secrets_in_a_line_are_masked(tmp_path: Path) -> None:
    outline = outline_of(tmp_path, "def run():\n    ray.get(f.remote(api_key='k-123'))")

    (run,) = (one for one in outline.functions if one.name == "run")
    assert run.steps[0].source == "ray.get(f.remote(api_key='***'))"


def test_a_function_with_too_many_steps_is_left_out(tmp_path: Path) -> None:
    outline = outline_of(tmp_path, "def run():\n" + "    ray.get(f.remote())\n" * 200)

    assert "run" not in [one.name for one in outline.functions]
    assert outline.why_partial == "a function has too many steps"


SOURCES = {
    "tests": sorted((ROOT / "tests" / "unit" / "probes").glob("*.py")),
    "stdlib": [path for path in sorted(Path(os.__file__).parent.rglob("*.py")) if "site-packages" not in path.parts],
}


@pytest.mark.parametrize("name", ["tests", pytest.param("stdlib", marks=pytest.mark.exhaustive)])
def test_any_source_can_be_walked(tmp_path: Path, name: str) -> None:
    problems = {}
    for path in SOURCES[name]:
        copy = tmp_path / "app.py"  # alone, without what it imports
        copy.write_text(path.read_text(encoding="utf-8", errors="replace") + "\nimport ray\n")
        problems[path] = outline_of_files([str(copy)]).why_partial

    assert SOURCES[name]
    assert {path: problem for path, problem in problems.items() if "followed" in problem} == {}
