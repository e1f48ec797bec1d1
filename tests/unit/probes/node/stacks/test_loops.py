"""Loops by their source: those that end by themselves, that only poll, and others; and what they call."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from dstack.observed import LoopBody
from dstack.probes.node.stacks.loops import Loops, loop_at
from dstack.probes.node.stacks.origins import Origins
from dstack.probes.node.stacks.table import StackTable
from dstack.probes.node.threads import Position, ShownFrame


def kind(source: str, at: str) -> str | None:
    """The kind of the loop around the only line that contains this text."""
    lines = ["def f():", *(f"    {line}" for line in dedent(source).split("\n"))]
    (line,) = [number for number, text in enumerate(lines, 1) if at in text]
    found = loop_at(lines, line)
    return found and found[0]


WAIT = "done, _ = ray.wait(refs, timeout=1)  # POLL"


@pytest.mark.parametrize(
    "source",
    [
        "while True:\n    done, _ = ray.wait(refs, timeout=1)  # POLL",
        "while True:\n    done, _ = ray.wait(refs, timeout=1)  # POLL\n    if done:\n        use(done)\n        break",
        f"while True:\n    {WAIT}\n    if not done:\n        continue\n    use(done)",
        "while remaining:\n    done, remaining = ray.wait(remaining, timeout=1)  # POLL",
        "while ray.get(buffer.size.remote()) < n:  # POLL\n    time.sleep(0.2)",
        "while ray.get(\n    buffer.size.remote()  # POLL\n) < n:\n    time.sleep(0.2)",
        "while True:\n    try:\n        x = q.get(timeout=1)  # POLL\n    except Empty:\n        continue\n    use(x)",
        "while True:\n    try:\n        use(q.get(timeout=1))  # POLL\n    except Empty:\n        print('waits')",
        "while count < n:\n    done, _ = ray.wait(refs, timeout=1)  # POLL\n    if done:\n        count += 1",
        "while not stop.wait(1.0):  # POLL\n    pass",
        "while not stop.wait(timeout):  # POLL\n    pass",
        "while pool.has_next():\n    pool.get_next(timeout=1)  # POLL",
        "for step in itertools.count():\n    event.wait(1)  # POLL",
        "for step in iter(object, None):\n    event.wait(1)  # POLL",
        "for epoch in range(3):\n    while True:\n        event.wait(1)  # POLL",
        "async def g():\n    while True:\n        await asyncio.wait_for(q.get(), 1)  # POLL",
    ],
)
def test_a_loop_only_polls(source: str) -> None:
    assert kind(source, "# POLL") == "plain"


@pytest.mark.parametrize(
    "source",
    [
        "for _ in range(900):\n    done, _ = ray.wait(refs, timeout=1)  # POLL",
        "for ref in refs:\n    ray.wait([ref], timeout=1)  # POLL",
        "while True:\n    for _ in range(9):\n        event.wait(1)  # POLL",
        "while time.monotonic() < until:\n    event.wait(1)  # POLL",
        "while not done and clock.now() < end:\n    event.wait(1)  # POLL",
        "while True:\n    event.wait(1)  # POLL\n    if time.time() - start > 60:\n        raise TimeoutError",
        "while attempts_left:\n    event.wait(1)  # POLL",
        "while n < 9:\n    n += 1\n    event.wait(1)  # POLL",
        "while True:\n    try:\n        q.get(timeout=1)  # POLL\n    except Empty:\n        n += 1\n"
        "        if n > 9:\n            break",
        "while True:\n    done, _ = ray.wait(refs, timeout=1)  # POLL\n    if self.is_over():\n        return None",
        "while not os.path.exists(path):\n    event.wait(1)  # POLL",
        "for step in itertools.repeat(0, 9):\n    event.wait(1)  # POLL",
        "while True\n    event.wait(1)  # POLL",
    ],
)
def test_a_loop_ends_by_itself_or_cannot_be_parsed(source: str) -> None:
    assert kind(source, "# POLL") == "bounded"


@pytest.mark.parametrize(
    "source",
    [
        "while not stop.wait(1.0):  # POLL\n    if os.path.exists(path):\n        done.set()",
        "while True:\n    if stop.wait(1.0):  # POLL\n        return\n    send_heartbeat()",
        "while True:\n    try:\n        item = q.get(timeout=1)  # POLL\n    except Empty:\n        tick()",
        "while True:\n    event.wait(1)  # POLL\n    if not event.is_set():\n        check()",
        "while True:\n    if event.wait(1):  # POLL\n        break\n    else:\n        check()",
        "while True:\n    requests.get(url)\n    event.wait(1)  # POLL",
        "while True:\n    with lock:\n        check()\n    event.wait(1)  # POLL",
    ],
)
def test_a_loop_does_something_else_though_nothing_came(source: str) -> None:
    assert kind(source, "# POLL") == "busy"


@pytest.mark.parametrize("source", ["event.wait(1)  # POLL", "while True:\n    pass\nevent.wait(1)  # POLL"])
def test_a_line_outside_of_all_loops_is_no_loop(source: str) -> None:
    assert kind(source, "# POLL") is None


def test_a_loop_around_a_function_is_not_its_own() -> None:
    assert kind("while True:\n    def g():\n        event.wait(1)  # POLL", "# POLL") is None


@pytest.mark.parametrize("line", [-1, 0, 3, 10**9])
def test_an_absent_line_is_no_loop(line: int) -> None:
    assert loop_at(["while True:", "    pass"], line) is None


def test_frames_of_the_user_carry_the_kind_of_their_loop(tmp_path: Path) -> None:
    path = tmp_path / "app.py"
    path.write_text("while True:\n    for _ in range(9):\n        wait()\n    wait()\nwait()\n")
    table = StackTable(Origins(), Loops())

    table.add([ShownFrame(Position(str(path), "f", "f", line)) for line in (3, 4, 5)], "/")

    assert [frame.loop for frame in table.frames] == ["bounded", "plain", None]


# What a loop calls


def body(source: str, at: str = "# POLL") -> LoopBody | None:
    """The lines and calls of the loop around the only line that contains this text."""
    lines = dedent(source).strip().split("\n")
    (line,) = [number for number, text in enumerate(lines, 1) if at in text]
    found = loop_at(lines, line)
    return found and found[1]


def test_a_loop_has_its_lines_and_calls() -> None:
    found = body(
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

    assert found == LoopBody(first_line=2, last_line=7, calls=("ray.nodes", "os.path.exists"), sleeps=True)


def test_calls_without_a_name_and_too_many_are_left_out() -> None:
    names = [f"f{number}()" for number in range(20)]
    found = body(f"while not table[0]().done():\n    {'; '.join(names)}  # POLL\n    {'g' * 99}()")

    assert found == LoopBody(first_line=1, last_line=3, calls=("f0", "f1", "f2", "f3", "f4", "f5"))


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ('while True:\n    a = ray.get_actor("boss")  # POLL', ("boss",)),
        ('NAME: str = "boss"  # theirs\nwhile True:\n    a = get_actor(NAME)  # POLL', ("boss",)),
        ('NAME = "boss"\nNAME = "other"\nwhile True:\n    a = get_actor(NAME)  # POLL', ()),
        ('NAME = f("boss")\nwhile True:\n    a = get_actor(NAME)  # POLL', ()),
        ('name = "boss"\nwhile True:\n    a = get_actor(name)  # POLL', ()),
        ("while True:\n    a = get_actor(3, get_actor(), names[0])  # POLL", ()),
    ],
)
def test_the_actors_that_a_loop_asks_for_are_known_by_constants(source: str, names: tuple[str, ...]) -> None:
    found = body(source)

    assert found is not None
    assert found.actors == names


def test_only_frames_of_the_user_have_the_lines_of_their_loop(tmp_path: Path) -> None:
    path = tmp_path / "app.py"
    path.write_text("while True:\n    wait()\nwait()\n")
    table = StackTable(Origins(), Loops())
    positions = [Position(str(path), "f", "f", line) for line in (2, 3)]
    of_ray = Position(str(path), "g", "g", 2, origin="ray")

    table.add([ShownFrame(one) for one in (*positions, of_ray)], "/")

    assert [frame.body for frame in table.frames] == [LoopBody(first_line=1, last_line=2, calls=("wait",)), None, None]
