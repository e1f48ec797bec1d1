"""What is predicted from runs that ended, and which guards exclude it."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.model.prediction import PossibleDeadlock, Prediction
from dstack.report.prediction_text import headline, how, possible_text
from tests.unit.scenes.runs import Run

SHOPS = """
import ray

@ray.remote{options}
class Shop:
    {define} ping(self):
        return 1

    {define} work(self):
        return {wait}

def main():
    a, b = Shop.remote(), Shop.remote()
    {calls}
"""
BOTH = "ray.get([a.work.remote(), b.work.remote()])"
IN_TURN = "ray.get(a.work.remote())\n    ray.get(b.work.remote())"
GET = "ray.get(self.other.ping.remote())"


def shops(
    folder: Path,
    calls: str = BOTH,
    wait: str = GET,
    define: str = "def",
    options: str = "",
    *,
    second_at: float = 0.6,
    has_source: bool = True,
) -> Prediction:
    """Two actors that ask each other: the second call begins after the first one has ended."""
    run = Run(folder, SHOPS.format(calls=calls, wait=wait, define=define, options=options))
    a, b = run.actor("Shop"), run.actor("Shop")
    for own, other, at in ((a, b, 0.1), (b, a, second_at)):
        work = run.call("Shop.work", at, at + 0.2, of=own)
        run.call("Shop.ping", at + 0.05, at + 0.1, of=other, by=work)
    return AnalysedSnapshot.of(run.snapshot(has_source=has_source)).prediction


def test_two_actors_that_ask_each_other_may_meet(tmp_path: Path) -> None:
    (possible,) = shops(tmp_path).possible

    assert [(one.name, one.is_queued) for one in possible.members] == [
        ("Shop.work", False),
        ("Shop.ping", True),
        ("Shop.work", False),
        ("Shop.ping", True),
    ]
    assert headline(possible) == "2 calls of Shop.work wait for each other for ever if they run at the same time"
    assert how(possible).startswith("2 begins before Shop.ping, for which 1 waits. In this run one had ended 0.3 s")
    assert possible.members[0].source == "return ray.get(self.other.ping.remote())"
    assert "max_concurrency" in possible_text(possible)


def test_the_source_of_a_driver_counts_also_if_ray_keeps_no_task_of_it(tmp_path: Path) -> None:
    run = Run(tmp_path, SHOPS.format(calls=BOTH, wait=GET, define="def", options=""))
    a, b = run.actor("Shop"), run.actor("Shop")
    for own, other, at in ((a, b, 0.1), (b, a, 0.6)):
        work = run.call("Shop.work", at, at + 0.2, of=own)
        run.call("Shop.ping", at + 0.05, at + 0.1, of=other, by=work)
    snapshot = run.snapshot()
    assert snapshot.history is not None
    attempts = tuple(one for one in snapshot.history.attempts if one.kind != "DRIVER_TASK")

    without = replace(snapshot, history=replace(snapshot.history, attempts=attempts))
    assert AnalysedSnapshot.of(without).prediction.possible


@pytest.mark.parametrize(("until", "is_possible"), [(2.0, True), (None, False)], ids=["it has ended", "it may loop on"])
def test_calls_after_a_loop_are_not_those_in_it(until: float | None, is_possible: bool, tmp_path: Path) -> None:
    """In the loop one call follows the other, behind it nothing is between them."""
    calls = f"for _ in range(4):\n        ray.get(a.work.remote())\n        ray.get(b.work.remote())\n    {BOTH}"
    run = Run(tmp_path, SHOPS.format(calls=calls, wait=GET, define="def", options=""), until)
    a, b = run.actor("Shop"), run.actor("Shop")
    for number in range(5):
        for own, other, at in ((a, b, 0.1), (b, a, 0.21)):
            work = run.call("Shop.work", number * 0.3 + at, number * 0.3 + at + 0.1, of=own)
            run.call("Shop.ping", number * 0.3 + at + 0.05, number * 0.3 + at + 0.06, of=other, by=work)

    assert bool(AnalysedSnapshot.of(run.snapshot()).prediction.possible) == is_possible


@pytest.mark.parametrize(
    "guard",
    [
        {"calls": IN_TURN},
        {"wait": "ray.get(self.other.ping.remote(), timeout=5)"},
        {"wait": "self.other.ping.remote()"},
        {"define": "async def", "wait": "await self.other.ping.remote()"},
        {"options": "(max_concurrency=2)"},
        {"has_source": False},
    ],
    ids=["one caller waits in between", "timeout", "no wait", "await", "second slot", "unknown source"],
)
def test_what_excludes_it_is_known(guard: dict[str, object], tmp_path: Path) -> None:
    assert not shops(tmp_path, **guard).possible  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wait", "options", "held"),
    [("await self.other.ping.remote()", "(max_concurrency=1)", "only slot"), (GET, "", "event loop")],
)
def test_async_methods_may_meet_too(wait: str, options: str, held: str, tmp_path: Path) -> None:
    (possible,) = shops(tmp_path, wait=wait, options=options, define="async def").possible

    assert {hold.kind for one in possible.members for hold in one.holds} == {held}


def test_times_that_contradict_the_source_are_believed(tmp_path: Path) -> None:
    """The caller submits the second call while the first one runs, so it does not wait in between."""
    assert shops(tmp_path, calls=IN_TURN, second_at=0.2).possible


def test_an_actor_that_runs_two_calls_at_once_has_no_only_slot(tmp_path: Path) -> None:
    run = Run(tmp_path, SHOPS.format(calls=BOTH, wait=GET, define="def", options=""))
    a, b = run.actor("Shop"), run.actor("Shop")
    for own, other, at in ((a, b, 0.1), (b, a, 0.6), (a, b, 0.7), (b, a, 0.7)):
        work = run.call("Shop.work", at, at + 0.3, of=own)
        run.call("Shop.ping", at + 0.05, at + 0.1, of=other, by=work)

    assert not AnalysedSnapshot.of(run.snapshot()).prediction.possible


def test_a_run_that_ends_in_the_deadlock_predicts_nothing(tmp_path: Path) -> None:
    run = Run(tmp_path, SHOPS.format(calls=BOTH, wait=GET, define="def", options=""))
    a, b = run.actor("Shop"), run.actor("Shop")
    works = [(run.call("Shop.work", 0.1, of=own), other) for own, other in ((a, b), (b, a))]
    for work, other in works:
        run.call("Shop.ping", 0.2, of=other, by=work)

    assert not AnalysedSnapshot.of(run.snapshot()).prediction.possible


BANK = """
import threading
import ray

@ray.remote(max_concurrency=2)
class Bank:
    def __init__(self):
        self.left = threading.Lock()
        self.right = threading.Lock()

    def to_right(self):
        with self.left:
            with self.right:
                pass

    def to_left(self):
        with self.{first}:
            with self.{second}:
                pass

def main():
    bank = Bank.remote()
    ray.get([bank.to_right.remote(), bank.to_left.remote()])
"""


def bank(folder: Path, first: str, second: str) -> tuple[PossibleDeadlock, ...]:
    run = Run(folder, BANK.format(first=first, second=second))
    actor = run.actor("Bank")
    run.call("Bank.to_right", 0.1, 0.2, of=actor)
    run.call("Bank.to_left", 0.3, 0.4, of=actor)
    return AnalysedSnapshot.of(run.snapshot()).prediction.possible


def test_locks_in_two_orders_may_meet(tmp_path: Path) -> None:
    (possible,) = bank(tmp_path, "right", "left")

    assert [(one.name, one.awaits) for one in possible.members] == [
        ("Bank.to_right", "self.right"),
        ("Bank.to_left", "self.left"),
    ]
    assert "Take the locks in the same order in Bank.to_right and Bank.to_left." in possible_text(possible)


def test_locks_in_one_order_do_not(tmp_path: Path) -> None:
    assert not bank(tmp_path, "left", "right")


GUARDED = """
import ray

@ray.remote(max_concurrency=2)
class Gate:
    def enter(self): ...
    def leave(self): ...

@ray.remote
class Shop:
    def ping(self): ...

    def work(self):
        ray.get(self.gate.enter.remote())
        ray.get(self.other.ping.remote())
        {leave}

def main():
    gate = Gate.remote()
    a, b = Shop.remote(), Shop.remote()
    ray.get([a.work.remote(), b.work.remote()])
"""


@pytest.mark.parametrize(
    ("leave", "is_possible"),
    [("ray.get(self.gate.leave.remote())", False), ("pass", True)],
    ids=["leaves", "only enters"],
)
def test_calls_that_an_actor_may_keep_apart_are_not_predicted(leave: str, is_possible: bool, tmp_path: Path) -> None:
    run = Run(tmp_path, GUARDED.format(leave=leave))
    gate, a, b = run.actor("Gate"), run.actor("Shop"), run.actor("Shop")
    for own, other, at in ((a, b, 0.1), (b, a, 0.6)):
        work = run.call("Shop.work", at, at + 0.3, of=own)
        run.call("Gate.enter", at + 0.01, at + 0.02, of=gate, by=work)
        run.call("Shop.ping", at + 0.05, at + 0.1, of=other, by=work)
        if not is_possible:
            run.call("Gate.leave", at + 0.2, at + 0.21, of=gate, by=work)

    assert bool(AnalysedSnapshot.of(run.snapshot()).prediction.possible) == is_possible


TASKS_WITH_LOCKS = """
import threading
import ray

LEFT, RIGHT = threading.Lock(), threading.Lock()

@ray.remote
def to_right():
    with LEFT, RIGHT: ...

@ray.remote
def to_left():
    with RIGHT, LEFT: ...

def main():
    ray.get([to_right.remote(), to_left.remote()])
"""


def test_tasks_of_one_process_run_one_after_the_other(tmp_path: Path) -> None:
    run = Run(tmp_path, TASKS_WITH_LOCKS)
    run.call("to_right", 0.1, 0.2)
    run.call("to_left", 0.3, 0.4)
    snapshot = run.snapshot()
    assert snapshot.history is not None
    attempts = tuple(replace(one, worker_id="w1") for one in snapshot.history.attempts)

    same_worker = replace(snapshot, history=replace(snapshot.history, attempts=attempts))
    assert not AnalysedSnapshot.of(same_worker).prediction.possible


GATE = """
import threading
import ray

@ray.remote(max_concurrency={slots})
class Gate:
    def __init__(self):
        self.is_open = threading.Event()
    def open(self):
        self.is_open.set()
    def enter(self):
        self.is_open.wait()
    {more}

@ray.remote
def helper(gate):
    return gate.open.remote()

def main():
    gate = Gate.remote()
    ray.get([helper.remote(gate), gate.enter.remote(), gate.enter.remote()])
"""


@pytest.mark.parametrize(
    ("slots", "more", "is_possible"),
    [(2, "", True), (3, "", False), (2, "def reset(self): self.is_open.clear()", False)],
    ids=["as many slots as wait", "one slot more", "it is cleared again"],
)
def test_calls_that_wait_for_an_event_may_take_the_slots_of_the_call_that_sets_it(
    slots: int, more: str, is_possible: bool, tmp_path: Path
) -> None:
    run = Run(tmp_path, GATE.format(slots=slots, more=more))
    gate = run.actor("Gate")
    other = run.call("helper", 0.1, 0.6)
    run.call("Gate.open", 0.1, 0.2, of=gate, by=other)
    for at in (0.3, 0.4):
        run.call("Gate.enter", at, at + 0.05, of=gate)

    assert bool(AnalysedSnapshot.of(run.snapshot()).prediction.possible) == is_possible


QUEUE = """
import queue, threading
import ray

@ray.remote(max_concurrency={slots})
class Queue:
    def __init__(self):
        self.items = queue.Queue({size})
        {first}
    def put(self, item):
        {put}
    def get(self):
        return self.items.get()

@ray.remote
def produce(items):
    for item in "ab":
        ray.get(items.put.remote(item))

@ray.remote
def consume(items):
    return [ray.get(items.get.remote()) for _ in range(4)]

def main():
    items = Queue.remote()
    taken = consume.remote(items)
    ray.get([produce.remote(items), produce.remote(items)])
    ray.get(taken)
"""


def queue(
    folder: Path,
    slots: int = 2,
    size: str = "1",
    put: str = "self.items.put(item)",
    first: str = "",
    *,
    takes_late: bool = False,
) -> Prediction:
    """Two producers and a consumer share a queue, each of which waits for its last call before it makes the next."""
    run = Run(folder, QUEUE.format(slots=slots, size=size, put=put, first=first))
    items = run.actor("Queue")
    consumer = run.call("consume", 0.1, 1.0)
    for number in range(2):
        producer = run.call("produce", 0.1, 0.9)
        for at in (0.2 + number / 5, 0.6 + number / 5):
            run.call("Queue.put", at, at + 0.05, of=items, by=producer)
            run.call("Queue.get", at + 0.02, None if takes_late else at + 0.06, of=items, by=consumer)
    return AnalysedSnapshot.of(run.snapshot()).prediction


def test_calls_that_wait_for_room_may_take_the_slots_of_those_that_make_it(tmp_path: Path) -> None:
    (possible,) = queue(tmp_path).possible

    assert [(one.name, one.awaits, one.is_queued) for one in possible.members] == [
        ("Queue.put", "Queue.get", False),
        ("Queue.get", "", True),
        ("Queue.put", "Queue.get", False),
    ]
    assert possible_text(possible).count("waits for Queue.get, which is queued behind 1 and 2") == 2


@pytest.mark.parametrize(
    "guard",
    [
        {"slots": 3},
        {"size": ""},
        {"size": "ROOM"},
        {"size": "4"},
        {"put": "self.items.put(item, timeout=1)"},
        {"put": "if item: self.items.put(item)"},
        {"first": "for item in range(2): self.items.put(item)"},
        {"first": "threading.Thread(target=self.get).start()"},
        {"takes_late": True},
    ],
    ids=["a slot is left", "no bound", "unknown size", "room for all", "timeout", "branch", "loop", "thread", "no end"],
)
def test_what_excludes_that_calls_starve_is_known(guard: dict[str, object], tmp_path: Path) -> None:
    assert not queue(tmp_path, **guard).possible  # type: ignore[arg-type]


def test_an_item_that_the_constructor_puts_takes_room(tmp_path: Path) -> None:
    assert queue(tmp_path, size="2", first="self.items.put(0)").possible


GIVEN = """
import ray

@ray.remote
class Shop:
    def ping(self): ...

    def work(self, refs=()):
        {before}
        ray.get(self.other.ping.remote())

def main():
    a, b = Shop.remote(), Shop.remote()
    first = a.work.remote()
    ray.get(b.work.remote([first]))
"""


@pytest.mark.parametrize(("before", "is_possible"), [("ray.get(refs)", False), ("pass", True)])
def test_a_call_that_waits_for_refs_that_it_was_given_may_wait_for_the_other(
    before: str, is_possible: bool, tmp_path: Path
) -> None:
    run = Run(tmp_path, GIVEN.format(before=before))
    a, b = run.actor("Shop"), run.actor("Shop")
    for own, other, at in ((a, b, 0.1), (b, a, 0.15)):
        work = run.call("Shop.work", at, at + 0.4, of=own)
        run.call("Shop.ping", at + 0.05 if own == a else 0.52, at + 0.1 if own == a else 0.53, of=other, by=work)

    assert bool(AnalysedSnapshot.of(run.snapshot()).prediction.possible) == is_possible


JOURNAL = """
import asyncio, threading
import ray

@ray.remote
class Journal:
    def __init__(self):
        self.lock = threading.Lock()

    async def write(self):
        with self.lock:
            {wait}

def main():
    journal = Journal.remote()
    ray.get([journal.write.remote(), journal.write.remote()])
"""


@pytest.mark.parametrize(("wait", "is_possible"), [("await asyncio.sleep(1)", True), ("pass", False)])
def test_a_thread_lock_that_is_held_in_an_await_blocks_the_loop_of_its_holder(
    wait: str, is_possible: bool, tmp_path: Path
) -> None:
    run = Run(tmp_path, JOURNAL.format(wait=wait))
    actor = run.actor("Journal")
    run.call("Journal.write", 0.1, 0.2, of=actor)
    run.call("Journal.write", 0.3, 0.4, of=actor)

    assert bool(AnalysedSnapshot.of(run.snapshot()).prediction.possible) == is_possible


TRIALS = """
import ray

@ray.remote(num_gpus=1)
def evaluate():
    return 1

@ray.remote(num_gpus=1)
def trial():
    return ray.get(evaluate.remote())

def main():
    ray.get([trial.remote(), trial.remote()])
"""


def trials(folder: Path, gpus: float, second_at: float) -> Prediction:
    run = Run(folder, TRIALS, GPU=gpus)
    for at in (0.1, second_at):
        trial = run.call("trial", 0.1, at + 0.2, began=at, GPU=1.0)
        run.call("evaluate", at + 0.05, at + 0.1, by=trial, GPU=1.0)
    return AnalysedSnapshot.of(run.snapshot()).prediction


def test_tasks_that_hold_what_their_children_need_may_meet(tmp_path: Path) -> None:
    (possible,) = trials(tmp_path, gpus=2, second_at=0.4).possible

    assert {(hold.kind, hold.name) for one in possible.members for hold in one.holds} == {("resource", "GPU")}


def test_enough_of_the_resource_is_told_as_a_need(tmp_path: Path) -> None:
    prediction = trials(tmp_path, gpus=4, second_at=0.15)

    assert not prediction.possible
    (need,) = prediction.needs
    assert (need.name, need.awaits, need.at_once, need.minimum, need.hangs_at) == ("trial", "evaluate", 2, 3, 4)


def test_actors_that_live_at_once_need_their_resources_together(tmp_path: Path) -> None:
    run = Run(tmp_path, SHOPS.format(calls=BOTH, wait=GET, define="def", options="(num_cpus=1)"), CPU=64.0)
    for _ in range(3):
        run.actor("Shop", CPU=1.0)

    (need,) = AnalysedSnapshot.of(run.snapshot()).prediction.needs
    assert (need.name, need.minimum, need.present) == ("3 × Shop", 3, 64)


def test_without_a_history_nothing_is_predicted_and_it_says_so(tmp_path: Path) -> None:
    run = Run(tmp_path, TRIALS)
    prediction = AnalysedSnapshot.of(replace(run.snapshot(), history=None)).prediction

    assert not prediction.possible
    assert prediction.limits
