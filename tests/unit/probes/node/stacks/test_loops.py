"""Loops by their source: those that are proven to only poll, what may end others, and what they call."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstack.observed.processes import ActorName, LoopBody
from dstack.probes.node.stacks.loops import NOTHING, FoundLoop, loop_at
from dstack.probes.node.stacks.origins import Origins
from dstack.probes.node.stacks.source_files import SourceFiles
from dstack.probes.node.stacks.source_syntax import FileNames
from dstack.probes.node.stacks.table import StackTable
from dstack.probes.node.thread_stacks import CodePosition, TextFrame
from tests.fuzzing.effort import examples


def loop_in(lines: list[str], line: int) -> FoundLoop:
    return loop_at(lines, line, lambda: FileNames.of(lines))


def found(source: str, at: str = "# POLL") -> FoundLoop:
    """The loop around the only line that contains this text, in a function."""
    lines = ["def f():", *textwrap.indent(source, "    ").split("\n")]
    (line,) = [number for number, text in enumerate(lines, 1) if at in text]
    return loop_in(lines, line)


def until(source: str) -> str:
    """The text of what may end a loop that is not proven to poll."""
    loop = found(source)
    assert not loop.only_polls
    assert loop.body is not None
    return loop.body.until


WAIT = "done, _ = ray.wait(refs, timeout=1)  # POLL"

PROVEN = {
    "constant": f"while True:\n    {WAIT}",
    "break with the result": f"while True:\n    {WAIT}\n    if done:\n        use(done)\n        break",
    "continue without a result": f"while True:\n    {WAIT}\n    if not done:\n        continue\n    use(done)",
    "length of the result": f"while True:\n    {WAIT}\n    if len(done) == 0:\n        print('no')\n"
    f"    else:\n        use(done)",
    "loop over the result": f"while True:\n    {WAIT}\n    for ref in done:\n        use(ref)",
    "result of another name": f"while not ready:\n    {WAIT}\n    ready = list(done)",
    "rest of the refs": "while pending:\n    _, pending = ray.wait(pending, timeout=1)  # POLL",
    "first of a result": "while not (done := ray.wait(refs, timeout=1)[0]):  # POLL\n    pass",
    "collected": "while len(out) < n:\n    done, refs = ray.wait(refs, timeout=1)  # POLL\n    out += done",
    "extended": "while len(out) < len(all_of):\n    done, refs = ray.wait(refs, timeout=1)  # POLL\n"
    "    out.extend(done)",
    "all of a result": f"while True:\n    {WAIT}\n    if all(ref in done for ref in refs):\n        break",
    "counts results": f"while count < n:\n    {WAIT}\n    if done:\n        count += 1",
    "flag of its own": f"while running:\n    {WAIT}\n    if done:\n        running = False",
    "logs": f"while True:\n    {WAIT}\n    self.logger.info('%d s', time.time() - start)\n    time.sleep(1)",
    "logs sometimes": f"while True:\n    {WAIT}\n    if time.time() > last + 60:\n        print('waits')\n"
    f"        last = time.time()",
    "doubles its timeout": "while True:\n    ray.wait(refs, timeout=pause)  # POLL\n    pause = min(2 * pause, 9)",
    "keys": "while True:\n    ray.wait(list(tasks.keys()), timeout=1)  # POLL",
    "attributes of the poll": "while True:\n    ray.wait([self.ref], timeout=self.period)  # POLL",
    "event": "while not stop.wait(1.0):  # POLL\n    pass",
    "state of the event": "while not event.is_set():\n    event.wait(1)  # POLL",
    "thread": "while self.thread.is_alive():\n    self.thread.join(1)  # POLL",
    "condition": "while True:\n    with ready:\n        if ready.wait(1):  # POLL\n            break",
    "queue": "while True:\n    try:\n        x = q.get(timeout=1)  # POLL\n    except queue.Empty:\n"
    "        continue\n    use(x)",
    "use in the try": "while True:\n    try:\n        x = q.get(timeout=1)  # POLL\n        use(x)\n"
    "    except Empty:\n        print('no')",
    "suppressed": "while True:\n    with contextlib.suppress(Empty):\n"
    "        x = q.get(timeout=1)  # POLL\n        break",
    "one of several errors": "while True:\n    try:\n        return ray.get(ref, timeout=1)  # POLL\n"
    "    except (OSError, GetTimeoutError):\n        pass",
    "await": "while True:\n    try:\n        await asyncio.wait_for(q.get(), 1)  # POLL\n"
    "    except TimeoutError:\n        pass",
    "call of an actor": "while ray.get(buffer.size.remote()) < n:  # POLL\n    time.sleep(0.2)",
    "sleep after a call": "while not ray.get(a.ready.remote()):\n    time.sleep(0.2)  # POLL",
    "call in two lines": "while ray.get(\n    buffer.size.remote()  # POLL\n) < n:\n    time.sleep(0.2)",
    "call in two statements": "while True:\n    ref = a.state.remote()\n    state = ray.get(ref)  # POLL\n"
    "    if state == 'done':\n        finish()\n        break\n    time.sleep(1)",
    "awaited call": "while True:\n    if await a.ready.remote():\n        break\n    await asyncio.sleep(1)  # POLL",
    "counting iterator": "for step in itertools.count():\n    event.wait(1)  # POLL",
    "iterator without an end": "for step in iter(int, 1):\n    event.wait(1)  # POLL",
    "inner loop": "for epoch in range(3):\n    while True:\n        event.wait(1)  # POLL",
    "own function": "while True:\n    if self.is_ready():  # POLL\n        break",
}


@pytest.mark.parametrize("source", PROVEN.values(), ids=PROVEN)
def test_a_loop_only_polls(source: str) -> None:
    assert found(source).only_polls


NOT_PROVEN = {
    "flag": ("while not stop.is_set():\n    ray.wait(refs, timeout=1)  # POLL", "stop.is_set()"),
    "flag beside the result": (f"while not done and not stop.is_set():\n    {WAIT}", "stop.is_set()"),
    "attribute": ("while self.running:\n    ray.wait(refs, timeout=1)  # POLL", "not self.running"),
    "property": ("while not self.is_late:\n    ray.wait(refs, timeout=1)  # POLL", "self.is_late"),
    "count in an attribute": (f"while len(done) < self.count:\n    {WAIT}", "len(done) >= self.count"),
    "variable": ("while names:\n    ray.wait(refs, timeout=1)  # POLL", "not names"),
    "list of others": (f"while len(results) < n:\n    {WAIT}", "len(results) >= n"),
    "method": ("while pool.has_next():\n    pool.wait(1)  # POLL", "not pool.has_next()"),
    "function in a branch": (f"while True:\n    {WAIT}\n    if is_over():\n        return None", "is_over()"),
    "else of a branch": (
        f"while True:\n    {WAIT}\n    if self.on:\n        pass\n    else:\n        break",
        "not self.on",
    ),
    "file": ("while not os.path.exists(path):\n    event.wait(1)  # POLL", "os.path.exists(path)"),
    "time": ("while time.monotonic() < end:\n    event.wait(1)  # POLL", "time.monotonic() >= end"),
    "time of a branch": (
        "while True:\n    event.wait(1)  # POLL\n    if time.time() - start > 60:\n        raise TimeoutError",
        "time.time() - start > 60",
    ),
    "counter": ("while n < 9:\n    n += 1\n    event.wait(1)  # POLL", "n >= 9"),
    "counter with a result": (f"while n < 9:\n    {WAIT}\n    n = len(done) + n + 1", "n >= 9"),
    "counter of errors": (
        "while True:\n    try:\n        q.get(timeout=1)  # POLL\n    except Empty:\n        n += 1\n"
        "        if n > 9:\n"
        "            break",
        "n > 9",
    ),
    "inner counter": (
        f"while True:\n    for i in names:\n        print(i)\n    if i == n:\n        break\n    {WAIT}",
        "i == n",
    ),
    "assertion": ("while True:\n    assert self.ok\n    event.wait(1)  # POLL", "not self.ok"),
    "secret": ("while token != 'abc':\n    event.wait(1)  # POLL", "token == '***'"),
    "long": (f"while {'x' * 80}:\n    event.wait(1)  # POLL", f"not {'x' * 55}…"),
    "leaves without a result": (f"while True:\n    {WAIT}\n    if not done:\n        break", ""),
    "ends without a result": ("while event.wait(1):  # POLL\n    pass", ""),
    "error of the poll": ("while True:\n    x = q.get(timeout=1)  # POLL", ""),
    "error of await": ("while True:\n    await asyncio.wait_for(q.get(), 1)  # POLL", ""),
    "error that is raised again": (
        "while True:\n    try:\n        q.get(timeout=1)  # POLL\n    except Empty:\n        raise",
        "",
    ),
    "other error": ("while True:\n    try:\n        q.get(timeout=1)  # POLL\n    except OSError:\n        pass", ""),
    "method as timeout": ("while True:\n    ray.wait(refs, timeout=self.left())  # POLL", ""),
    "time as timeout": ("while True:\n    left = end - time.time()\n    ray.wait(refs, timeout=left)  # POLL", ""),
    "other refs each time": ("while True:\n    ray.wait([refs[i]], timeout=1)  # POLL\n    i += 1", ""),
    "predicate": ("while True:\n    ready.wait_for(lambda: self.stopped, 1)  # POLL", ""),
    "method beside it": ("while True:\n    event.wait(1)  # POLL\n    self.count()", ""),
    "work in a handler": (
        "while True:\n    try:\n        q.get(timeout=1)  # POLL\n    except Empty:\n        tick()",
        "",
    ),
    "work without a result": ("while True:\n    if stop.wait(1.0):  # POLL\n        return\n    send_heartbeat()", ""),
    "work in the else": ("while True:\n    if event.wait(1):  # POLL\n        break\n    else:\n        check()", ""),
    "context": ("while True:\n    with deadline():\n        event.wait(1)  # POLL", ""),
    "two polls": ("while True:\n    if stop.wait(1):\n        break\n    event.wait(1)  # POLL", "stop.wait(1)"),
    "two calls in a line": ("while True:\n    check(event.wait(1))  # POLL", ""),
    "generator": ("while True:\n    yield event.wait(1)  # POLL", ""),
    "next item": ("while True:\n    ref = next(refs)\n    ray.wait([ref], timeout=1)  # POLL", ""),
    "sleep of its own": ("while True:\n    event.wait(1)  # POLL\n    sleep(1)", ""),
    "inner while": ("while True:\n    while x:\n        pass\n    event.wait(1)  # POLL", ""),
    "no poll": ("while not ready:\n    time.sleep(1)  # POLL", "ready"),
    "range": ("for _ in range(900):\n    ray.wait(refs, timeout=1)  # POLL", ""),
    "repeat": ("for _ in itertools.repeat(0, 9):\n    event.wait(1)  # POLL", ""),
}


@pytest.mark.parametrize(("source", "condition"), NOT_PROVEN.values(), ids=NOT_PROVEN)
def test_something_else_may_end_a_loop(source: str, condition: str) -> None:
    assert until(source) == condition


@pytest.mark.parametrize("iterated", ["range(900)", "refs", "self.attempts()"])
def test_what_a_loop_goes_over_is_named(iterated: str) -> None:
    body = found(f"for one in {iterated}:\n    event.wait(1)  # POLL").body

    assert body is not None
    assert body.over == iterated


@pytest.mark.parametrize(
    ("loop", "rest"),
    [
        (
            "while len(done) < N:\n    done, _ = ray.wait(refs, timeout=1)  # POLL",
            "def set():\n    global M, N\n    N = 0",
        ),
        ("while True:\n    ray.wait(refs, timeout=self.left)  # POLL", "@property\ndef left(self): ..."),
        ("while True:\n    print(event.wait(1))  # POLL", "def print(*shown):\n    raise TimeoutError"),
    ],
)
def test_the_rest_of_the_file_says_what_names_are(loop: str, rest: str) -> None:
    assert found(loop).only_polls
    assert not found(f"{loop}\n{rest}").only_polls


FLAGGED = "while not stop.is_set():\n    done, _ = ray.wait(refs, timeout=1)  # POLL"
FLAGS = {
    "assigned": ("stop = threading.Event()\nstop.set()", True),
    "annotated": ("def watch(stop: threading.Event) -> None:\n    stop.set()", True),
    "one of several": ("self.done, self.stop = threading.Event(), threading.Event()\nself.stop.set()", True),
    "of another class": ("stop = Deadline(9)\nstop.set()", False),
    "of another library": ("stop = multiprocessing.Event()\nstop.set()", False),
    "with another method": ("stop = threading.Event()\nclass Late:\n    def is_set(self): ...", False),
    "set by a timer": ("stop = threading.Event()\nthreading.Timer(9, stop.set).start()", False),
    "set by a lambda": ("stop = threading.Event()\nfuture.then(lambda _: stop.set())", False),
    "set by a callback": ("stop = threading.Event()\nref.future().add_done_callback(late)", False),
    "set by a signal": ("stop = threading.Event()\nsignal.signal(signal.SIGALRM, late)", False),
}


@pytest.mark.parametrize(("rest", "is_proven"), FLAGS.values(), ids=FLAGS)
def test_an_event_that_only_code_of_threads_sets_is_a_flag(rest: str, is_proven: bool) -> None:
    loop = found(f"{FLAGGED}\n{rest}")

    assert loop.only_polls is is_proven
    assert loop.body is not None
    assert loop.body.until == "stop.is_set()"


@pytest.mark.parametrize(
    "source",
    [
        f"while not stop.is_set() and not late.is_set():\n    {WAIT}",
        f"while not stop.is_set() and self.running:\n    {WAIT}",
        "while True:\n    event.wait(1)  # POLL\n    if stop.is_set():\n        break\n    if n > 9:\n        break",
    ],
)
def test_a_loop_has_one_flag_and_no_other_end(source: str) -> None:
    assert not found(f"{source}\nstop, late = threading.Event(), threading.Event()").only_polls


def test_an_imported_sleep_is_one() -> None:
    loop = "while True:\n    event.wait(1)  # POLL\n    sleep(1)"

    assert found(f"from time import monotonic, sleep\n{loop}").only_polls
    assert not found(f"from own import sleep\n{loop}").only_polls


@given(st.lists(st.sampled_from(sorted(NOT_PROVEN)), min_size=1, max_size=2), st.sampled_from(sorted(PROVEN)))
@examples(200)
def test_what_is_not_proven_is_not_proven_beside_other_statements(names: list[str], other: str) -> None:
    """A statement that may end a loop does so whatever else a pass does."""
    guards = [f"    if {condition}:\n        break" for name in names if (condition := NOT_PROVEN[name][1])]
    inner = textwrap.indent(PROVEN[other].replace("# POLL", "#"), "    ")

    assert not found("\n".join(["while True:", "    event.wait(1)  # POLL", *guards, inner])).only_polls


# Functions that a loop calls

HELPERS = {
    "returns the result": ("done, _ = ray.wait(self.refs, timeout=1)  # POLL\nreturn done", True),
    "returns at once": ("return ray.wait(refs, timeout=1)[0]  # POLL", True),
    "works with the result": (f"{WAIT}\nif not done:\n    return None\nreturn ray.get(done[0])", True),
    "handles the timeout": ("try:\n    return q.get(timeout=1)  # POLL\nexcept Empty:\n    return None", True),
    "raises after a deadline": (f"if time.time() > self.end:\n    raise TimeoutError\n{WAIT}\nreturn done", False),
    "returns after a deadline": (f"{WAIT}\nif time.time() > self.end:\n    return True\nreturn done", False),
    "counts": ("self.count()\nreturn event.wait(1)  # POLL", False),
    "returns a flag": ("event.wait(1)  # POLL\nreturn self.stopped", False),
    "returns what it computes": ("event.wait(1)  # POLL\nreturn self.is_over()", False),
    "raises the timeout": ("return q.get(timeout=1)  # POLL", False),
    "yields": ("yield event.wait(1)  # POLL", False),
    "takes the next": ("ref = next(self.refs)\nreturn ray.wait([ref], timeout=1)  # POLL", False),
    "computes": ("event.wait(1)\ncompute()  # POLL", False),
}


@pytest.mark.parametrize(("source", "only_polls"), HELPERS.values(), ids=HELPERS)
def test_a_function_in_a_loop_only_polls_or_not(source: str, only_polls: bool) -> None:
    assert found(source) == FoundLoop(only_polls=only_polls)


@pytest.mark.parametrize("source", ["while True\n    event.wait(1)  # POLL", "while True:\n    x = (  # POLL"])
def test_a_loop_that_cannot_be_parsed_is_not_known(source: str) -> None:
    assert found(source) == NOTHING


def test_a_loop_around_a_function_is_not_its_own() -> None:
    assert found("while True:\n    def g():\n        event.wait(1)  # POLL").body is None


def test_a_line_of_no_function_is_in_no_loop() -> None:
    assert loop_in(["event.wait(1)"], 1) == NOTHING


@pytest.mark.parametrize("line", [-1, 0, 3, 10**9])
def test_an_absent_line_is_no_loop(line: int) -> None:
    assert loop_in(["while True:", "    pass"], line) == NOTHING


def test_frames_carry_their_loop_and_whether_it_only_polls(tmp_path: Path) -> None:
    path = tmp_path / "app.py"
    path.write_text("while True:\n    for _ in range(9):\n        wait()\n    wait()\nwait()\n")
    table = StackTable(Origins(), SourceFiles())

    table.add([TextFrame(CodePosition(str(path), "f", "f", line)) for line in (3, 4, 5)], "/")

    assert [frame.only_polls for frame in table.frames] == [False, False, False]
    assert [frame.body and frame.body.first_line for frame in table.frames] == [2, 1, None]


# What a loop calls


def body(source: str, at: str = "# POLL") -> LoopBody | None:
    """The lines and calls of the loop around the only line that contains this text."""
    lines = textwrap.dedent(source).strip().split("\n")
    (line,) = [number for number, text in enumerate(lines, 1) if at in text]
    return loop_in(lines, line).body


def test_a_loop_has_its_lines_and_calls() -> None:
    loop = body(
        """
        def wait_for_nodes(wanted):
            while True:
                joined = sum(1 for node in ray.nodes() if node["Alive"])
                if joined >= wanted:
                    return
                print(f"{joined} have joined"), logger.info("waiting"), os.path.exists(path), ray.nodes()
                time.sleep(1)  # POLL
        """
    )

    assert loop == LoopBody(
        first_line=2, last_line=7, calls=("ray.nodes", "os.path.exists"), sleeps=True, until="joined >= wanted"
    )


def test_calls_without_a_name_and_too_many_are_left_out() -> None:
    names = [f"f{number}()" for number in range(20)]
    loop = body(f"while not table[0]().done():\n    {'; '.join(names)}  # POLL\n    {'g' * 99}()")

    assert loop == LoopBody(
        first_line=1, last_line=3, calls=("f0", "f1", "f2", "f3", "f4", "f5"), until="table[0]().done()"
    )


BOSS = ActorName(name="boss")


@pytest.mark.parametrize(
    ("source", "asked"),
    [
        ('while True:\n    a = ray.get_actor("boss")  # POLL', (BOSS,)),
        ('while True:\n    a = ray.get_actor(name="boss")  # POLL', (BOSS,)),
        ('while True:\n    a = get_actor("boss", "prod")  # POLL', (ActorName(name="boss", namespace="prod"),)),
        (
            'while True:\n    a = get_actor("boss", namespace="prod")  # POLL',
            (ActorName(name="boss", namespace="prod"),),
        ),
        ('while True:\n    a = get_actor("boss", namespace=SPACE)  # POLL', ()),
        ('NAME: str = "boss"  # theirs\nwhile True:\n    a = get_actor(NAME)  # POLL', (BOSS,)),
        ("while True:\n    a = get_actor(name)  # POLL", (ActorName(name="name", is_variable=True),)),
        ('while True:\n    a = get_actor(f"worker {i}")  # POLL', ()),
        (f'while True:\n    a = get_actor("{"x" * 61}")  # POLL', ()),
        ("while True:\n    a = get_actor(3, get_actor(), names[0])  # POLL", ()),
    ],
)
def test_the_actors_that_a_loop_asks_for_are_known_by_texts_or_variables(
    source: str, asked: tuple[ActorName, ...]
) -> None:
    loop = body(source)

    assert loop is not None
    assert loop.asks_for == asked


@pytest.mark.parametrize(
    "caught", ["PendingCallsLimitExceeded", "(KeyError, ray.exceptions.PendingCallsLimitExceeded)"]
)
def test_a_loop_that_handles_a_full_queue_says_so(caught: str) -> None:
    loop = body(f"while True:\n    try:\n        a.f.remote()\n    except {caught}:\n        time.sleep(1)  # POLL")

    assert loop is not None
    assert loop.catches_full_queue


def test_a_loop_that_handles_other_errors_does_not_poll_a_queue() -> None:
    loop = body("while True:\n    try:\n        a.f.remote()\n    except:\n        time.sleep(1)  # POLL")

    assert loop is not None
    assert not loop.catches_full_queue
