"""What spans cost: the program that enters them, and the reading of a process that has some.

In turns, a ``with`` block and a call, each bare and in a span, and readings of three processes: without spans, and with
eight threads in a span each, with and without the 1,024 spans that have ended.

    python -m benchmarks.bench_spans [ROUNDS]
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from statistics import median
from timeit import Timer
from typing import Any

from benchmarks.harness import Results, arguments, in_turns, seconds_of, spread, target_process, times_ms
from dstack import span
from dstack.probes.node.probe import NodeProbe
from dstack.spans import KEPT
from tests.sampling import sample, target

TIMES = 50_000
THREADS = 8


def call() -> None: ...


decorated = span("call")(call)
PROGRAMS = {
    "with nullcontext()": "with nullcontext(): pass",
    "with span()": "with span('part'): pass",
    "a call": "call()",
    "a call in a span": "decorated()",
}


def program_costs(rounds: int) -> Results:
    timers = {name: Timer(statement, globals=globals()) for name, statement in PROGRAMS.items()}
    found = in_turns(timers, rounds, lambda timer: timer.timeit(TIMES) / TIMES * 1e9)
    results = Results(f"Spans in a program, Python {sys.version.split()[0]}", ("what", "ns", "range"))
    for name, times in found.items():
        results.add(name, f"{median(times):,.0f}", spread(times, 0))
    blocks, calls = (median(found[name]) for name in ("with nullcontext()", "a call"))
    within = (median(found[name]) for name in ("with span()", "a call in a span"))
    block, in_call = within
    results.notes.append(f"A span takes {block / blocks:.1f} times as long as a block with nullcontext().")
    results.notes.append(
        f"A span adds {block - blocks:.0f} ns to a block, {in_call - calls:.0f} ns to a call; n = {rounds}."
    )
    return results


def reader_costs(rounds: int) -> Results:
    results = Results("Reading a process of eight threads", ("process", "ms", "range"))
    with ExitStack() as stack:
        plain, spans = (stack.enter_context(target_process("bench_spans", how)).pid for how in ("plain", "spans"))
        ways: dict[str, Callable[[], Any]] = {
            "without spans": reading(plain, finished_spans=False),
            "with open spans": reading(spans, finished_spans=False),
            f"the same, with {KEPT:,} that have ended": reading(spans, finished_spans=True),
        }
        for way in ways.values():
            way()
        for name, times in in_turns(ways, rounds * 5, seconds_of).items():
            results.add(name, *times_ms(times))
    return results


def reading(pid: int, *, finished_spans: bool) -> Callable[[], Any]:
    """A warm reading of a process by a probe of its own."""
    probe = NodeProbe()
    return lambda: sample(target(pid), probe=probe, finished_spans=finished_spans)


def be_read(how: str) -> None:
    """Wait in eight threads, in spans or not."""
    for _ in range(KEPT if how == "spans" else 0):
        decorated()
    for _ in range(THREADS):
        threading.Thread(target=wait_in, args=(span("wait") if how == "spans" else nullcontext(),), daemon=True).start()
    print("ready", flush=True)
    time.sleep(1000)


def wait_in(block: Any) -> None:
    with block:
        threading.Event().wait()


if __name__ == "__main__":
    if sys.argv[1:2] == ["target"]:
        be_read(sys.argv[2])
    else:
        (rounds,) = arguments(9)
        for made in (program_costs(rounds), reader_costs(rounds)):
            made.show()
