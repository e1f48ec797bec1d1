"""What functions may do next, by their source."""

from __future__ import annotations

import pytest

from dstack.observed.processes import StopCall
from dstack.probes.node.stacks.next_calls import functions_in, next_at

SOURCE = """\
import asyncio, time
import ray as r
from os import _exit as leave
from ray import kill as end, cancel

def sleeps_then_cancels(ref):
    time.sleep(1)  # here
    cancel(ref)

def cancels_first(ref):
    r.cancel(ref)
    time.sleep(1)  # here

def cancels_in_loop(refs):
    for ref in refs:
        r.cancel(ref)
        time.sleep(1)  # here

class Supervisor:
    def watch(self):
        time.sleep(1)  # here
        self.stop_all()

    def stop_all(self):
        for actor in self.actors:
            end(actor)

def cancels_a_timer(timer):
    time.sleep(1)  # here
    timer.cancel()

def terminates(actor):
    time.sleep(1)  # here
    actor.__ray_terminate__.remote()

def exits():
    time.sleep(1)  # here
    leave(7)

def one_line():
    time.sleep(1); helper()  # here

def in_helper():
    helper()  # here

def returns(seconds):
    time.sleep(seconds)  # here
    return 42

async def raises(seconds):
    await asyncio.sleep(seconds)  # here
    raise TimeoutError

def raised_before(seconds):
    if seconds < 0:
        raise ValueError
    time.sleep(seconds)  # here
    print(len("done"))

def calls_unknown(work):
    time.sleep(1)  # here
    work()

def calls_what_raises():
    time.sleep(1)  # here
    fails()

def fails():
    assert False

def calls_what_returns():
    time.sleep(1)  # here
    returns(1)

def has_inner():
    def inner():
        raise KeyError
    time.sleep(1)  # here
""".splitlines()


FUNCTIONS = functions_in("\n".join(SOURCE))


def line_in(function: str) -> int:
    begin = next(number for number, line in enumerate(SOURCE) if f"def {function}(" in line)
    return next(number for number, line in enumerate(SOURCE[begin:], begin + 1) if line.endswith("# here"))


@pytest.mark.parametrize(
    ("function", "stops"),
    [
        ("sleeps_then_cancels", "ray.cancel"),
        ("cancels_first", None),
        ("cancels_in_loop", "ray.cancel"),
        ("watch", "self.stop_all"),
        ("cancels_a_timer", None),
        ("terminates", "actor.__ray_terminate__.remote"),
        ("exits", "os._exit"),
        ("returns", None),
    ],
)
def test_the_next_call_that_stops_something_is_found(function: str, stops: str | None) -> None:
    found = next_at(FUNCTIONS, line_in(function)).stops

    assert (found.name if found else None) == stops
    assert found is None or found.line > line_in(function) or function == "cancels_in_loop"


@pytest.mark.parametrize(
    ("function", "may_fail"),
    [
        ("returns", False),
        ("raises", True),
        ("raised_before", False),
        ("calls_unknown", True),
        ("calls_what_raises", True),
        ("calls_what_returns", False),
        ("has_inner", False),
    ],
)
def test_a_function_may_fail_unless_its_source_shows_that_it_does_not(function: str, may_fail: bool) -> None:
    assert next_at(FUNCTIONS, line_in(function)).may_fail is may_fail


@pytest.mark.parametrize(
    ("function", "may_stop"),
    [
        ("sleeps_then_cancels", True),
        ("cancels_first", False),
        ("calls_unknown", True),
        ("raises", False),
        ("one_line", True),
        ("in_helper", False),
    ],
)
def test_a_function_stops_nothing_if_all_that_it_may_still_call_is_harmless(function: str, may_stop: bool) -> None:
    assert next_at(FUNCTIONS, line_in(function)).may_stop is may_stop


@pytest.mark.parametrize("lines", [[], ["def f(:"], ["x = 1", "", ""]])
def test_without_readable_source_a_function_may_fail_and_stops_nothing(lines: list[str]) -> None:
    found = next_at(functions_in("\n".join(lines)), 7)

    assert (found.stops, found.may_fail) == (None, True)


def test_a_line_of_a_call_is_that_of_the_file() -> None:
    assert next_at(FUNCTIONS, line_in("sleeps_then_cancels")).stops == StopCall(name="ray.cancel", line=8)
