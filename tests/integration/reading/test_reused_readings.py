"""Rounds with ``reuse`` read only what has run since the last one, and say the same as a reading of everything."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import IO, Any

import pytest

from dstack.probes.node import kept_reading
from dstack.probes.node.memory_reader import MemoryReader
from dstack.probes.node.probe import NodeProbe
from tests.processes import wait_until
from tests.sampling import Plain, functions, sample, target, words_of

PROGRAM = """
import asyncio, sys, threading, time
event, lock, other = threading.Event(), threading.Lock(), threading.Lock()
lock.acquire()
def rests():
    threading.Event().wait()
def takes_lock():
    lock.acquire()
    rests()
def holds():
    with other:
        event.wait()
    rests()
def waits_for_holder():
    with other:
        rests()
def begin(function):
    threading.Thread(target=function, name=function.__name__, daemon=True).start()
def runs_loop():
    async def sleeps():
        await asyncio.Event().wait()
    asyncio.run(sleeps())
for function in (rests, takes_lock, holds):
    begin(function)
print("ready", flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""


class Program:
    """A process that runs the lines that it is sent, and a probe that has sampled it with ``reuse``.

    ``read`` has the threads that were read since :meth:`round` began, None for a reading of everything.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        assert self.output.readline() == "ready\n"
        self.probe = NodeProbe()
        self.read: list[str | None] = []
        all_at_once, again = MemoryReader._read, MemoryReader._state_again

        def read(reader: MemoryReader) -> Any:
            self.read.append(None)
            return all_at_once(reader)

        def state_again(reader: MemoryReader, *arguments: Any) -> Any:
            state = again(reader, *arguments)
            self.read.append(state.thread.name)
            return state

        monkeypatch.setattr(MemoryReader, "_read", read)
        monkeypatch.setattr(MemoryReader, "_state_again", state_again)
        wait_until(lambda: self.in_all_waits(3), deadline_s=20, what=lambda: "all threads waiting")
        self.round()

    @property
    def output(self) -> IO[str]:
        assert self.process.stdout
        return self.process.stdout

    def in_all_waits(self, count: int) -> bool:
        """Whether so many threads besides the main one are in a wait, which has been proven."""
        threads = self.sample(reach=True)["processes"]["w"]["threads"]
        return (
            sum(one["still"] and bool(words_of(one["call"])) for one in threads if one["name"] != "MainThread") == count
        )

    def run(self, line: str) -> None:
        """Run one line in the program's main thread, and wait until it has ended."""
        assert self.process.stdin
        self.process.stdin.write(line + "\n")
        assert self.output.readline() == "done\n"

    def sample(self, **options: Any) -> Plain:
        return sample(target(self.process.pid), probe=self.probe, **options)

    def round(self, **options: Any) -> Plain:
        self.read.clear()
        return self.sample(**{"reuse": True, "reach": False, **options})


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Iterator[Program]:
    program = Program(monkeypatch)
    with program.process:
        yield program
        program.process.kill()


def facts(answer: Plain) -> dict[str, tuple[Sequence[str], Plain, bool]]:
    """Of each thread by name: its functions, its call, and whether it is proven not to have run."""
    threads = answer["processes"]["w"]["threads"]
    return {one["name"]: (functions(answer, one), call_of(one), one["still"]) for one in threads}


def call_of(thread: Plain) -> Plain:
    """The call of a thread, without the processes at the other end of a pipe: this one runs."""
    return {name: value for name, value in words_of(thread["call"]).items() if name != "ends"}


def test_a_round_reads_nothing_again_if_nothing_has_run(program: Program) -> None:
    taken = program.round()

    assert program.read == []
    assert facts(taken) == facts(program.sample(reach=False))


def test_a_thread_that_ran_is_read_again_and_with_it_those_that_wait_in_the_process(program: Program) -> None:
    program.run("event.set()")
    taken = wait_until(lambda: moved(program), deadline_s=20, what=lambda: f"{program.read}")

    program.run("pass")
    again = program.round()
    assert {*program.read} == {"MainThread", "rests", "takes_lock", "holds"}
    assert facts(taken) == facts(again) == facts(program.sample(reach=False))


def moved(program: Program) -> Plain | None:
    """A round in which the thread that held a lock has gone on to rest."""
    taken = program.round()
    return taken if facts(taken)["holds"][0][:3] == ["wait", "wait", "rests"] else None


def test_a_thread_that_begins_or_ends_has_everything_read(program: Program) -> None:
    program.run("begin(waits_for_holder)")
    taken = program.round()
    assert program.read[0] is None
    assert "waits_for_holder" in facts(taken)
    wait_until(lambda: program.in_all_waits(4), deadline_s=20, what=lambda: "the new thread in its wait")
    program.round()

    program.run("lock.release()")

    def without_takes_lock() -> bool:
        return facts(program.round())["takes_lock"][0][:3] == ["wait", "wait", "rests"]

    wait_until(without_takes_lock, deadline_s=20, what=lambda: "the thread beyond its lock")


def test_who_holds_a_lock_is_read_again_when_any_thread_ran(program: Program) -> None:
    program.run("begin(waits_for_holder)")
    wait_until(lambda: program.in_all_waits(4), deadline_s=20, what=lambda: "the new thread in its wait")
    before = facts(program.round())["waits_for_holder"]
    program.run("pass")
    taken = program.round()

    assert None not in program.read
    assert {"MainThread", "waits_for_holder"} <= {*program.read}
    assert facts(taken)["waits_for_holder"] == before
    assert before[1]["threads"]


def test_an_event_loop_that_does_not_run_keeps_its_coroutines(program: Program) -> None:
    program.run("begin(runs_loop)")
    taken = wait_until(lambda: with_coroutine(program), deadline_s=20, what=lambda: "the coroutine")
    wait_until(lambda: program.round() and not program.read, deadline_s=20, what=lambda: "a round without readings")

    program.run("pass")
    program.round()
    assert None not in program.read
    assert with_coroutine(program)
    assert facts(taken).keys() == facts(program.sample(reach=False)).keys()


def with_coroutine(program: Program) -> Plain | None:
    taken = program.round()
    return taken if taken["processes"]["w"]["coroutines"] else None


def test_a_sample_that_may_prove_a_wait_and_other_options_read_everything(program: Program) -> None:
    for options in ({"reach": True}, {"reuse": False}, {"locals": True}):
        program.round(**options)
        assert program.read[0] is None, options


def test_a_reading_is_reused_for_a_limited_time(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_reading, "KEPT_S", 0.0)

    program.round()

    assert program.read[0] is None
