"""A driver that calls every function of the API on its own cluster, and prints the results as JSON."""

import asyncio
import contextlib
import json
import logging
import os
import pickle
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray

import dstack


class Side:
    def meet(self, other: Any) -> Any:
        return ray.get(other.answer.remote(self_handle()))

    def answer(self, asker: Any) -> Any:
        return ray.get(asker.done.remote())

    def done(self) -> None:
        pass


def self_handle() -> Any:
    return ray.get_runtime_context().current_actor


def wait_for(file: Path) -> str:
    while not file.exists():
        time.sleep(0.05)
    return "waited"


def deadlock() -> Any:
    """A call that never ends: each of two actors waits for the other."""
    one, other = (ray.remote(Side).options(num_cpus=0).remote() for _ in range(2))
    ray.get([one.done.remote(), other.done.remote()])
    return one.meet.remote(other)


@contextlib.contextmanager
def raising(outcome: dict[str, Any]) -> Iterator[None]:
    """Record the DeadlockFound of the code within."""
    try:
        yield
    except dstack.DeadlockFound as error:
        outcome["raised"] = str(error)
        outcome["is_an_assertion"] = isinstance(pickle.loads(pickle.dumps(error)), AssertionError)


def breaks_the_main_thread(stuck: Any) -> dict[str, Any]:
    outcome: dict[str, Any] = {}
    with (
        raising(outcome),
        dstack.guard(1, lambda hang: outcome.update(left_alone=hang.left_alone), break_deadlock=True),
    ):
        ray.get(stuck)
    return outcome


def leaves_other_threads(stuck: Any) -> dict[str, Any]:
    outcome: dict[str, Any] = {}
    hung = threading.Event()

    def note(hang: dstack.Hang) -> None:
        outcome["left_alone"] = hang.left_alone
        hung.set()

    @dstack.guard(1, note, break_deadlock=True)
    def get() -> None:
        ray.get(stuck)

    threading.Thread(target=get, daemon=True).start()
    hung.wait()
    return outcome


async def breaks_an_await(stuck: Any) -> dict[str, Any]:
    outcome: dict[str, Any] = {}

    @dstack.guard(1, lambda hang: None, break_deadlock=True)
    async def get() -> None:
        await stuck

    with raising(outcome):
        await get()
    outcome["continues"] = await asyncio.sleep(0, "yes")
    outcome["check"] = (await asyncio.to_thread(dstack.check)).verdict
    return outcome


def lets_slow_code_continue() -> dict[str, Any]:
    outcome: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as directory:
        end = Path(directory) / "end"

        def note(hang: dstack.Hang) -> None:
            outcome.update(verdict=hang.diagnosis.verdict, left_alone=hang.left_alone)
            end.touch()

        with dstack.guard(1, note, break_deadlock=True):
            outcome["value"] = ray.get(ray.remote(wait_for).remote(end))
    return outcome


def asserts() -> dict[str, Any]:
    outcome: dict[str, Any] = {}
    with raising(outcome):
        dstack.assert_no_deadlock()
    return outcome


def profiles() -> dict[str, Any]:
    """A profile of a block that waits for a task, and what there is before its end."""
    outcome: dict[str, Any] = {}
    end = Path(tempfile.mkdtemp()) / "end"
    with dstack.profile() as profile:
        try:
            profile.top()
        except dstack.UsageError as error:
            outcome["too early"] = error.message
        threading.Timer(2, end.touch).start()
        ray.get(ray.remote(wait_for).remote(end))
    profile.save(end.with_suffix(".json"))
    return outcome | {"top": profile.top(), "folded": profile.folded(), "saved": end.with_suffix(".json").exists()}


def state() -> list[Any]:
    """The state that a library must not change."""
    handlers = [repr(signal.getsignal(one)) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)]
    loggers = [logging.getLogger(name) for name in (None, "ray", "dstack")]
    return [handlers, [(one.level, list(map(repr, one.handlers))) for one in loggers], sorted(os.environ)]


def main() -> None:
    ray.init("local", num_cpus=2, include_dashboard=False)
    before = state()
    outcome: dict[str, Any] = {}
    snapshot = dstack.snapshot()
    outcome["reads itself"] = [worker.pid for worker in snapshot.workers if worker.is_driver] == [os.getpid()]
    outcome["idle"] = dstack.assert_no_deadlock(complete=True).verdict
    outcome["slow"] = lets_slow_code_continue()
    outcome["profile"] = profiles()
    stuck = deadlock()
    outcome["main thread"] = breaks_the_main_thread(stuck)
    outcome["other thread"] = leaves_other_threads(stuck)
    outcome["await"] = asyncio.run(breaks_an_await(stuck))
    outcome["assert"] = asserts()
    outcome["unchanged"] = state() == before and ray.get(ray.remote(wait_for).remote(Path("/"))) == "waited"
    print("outcome", json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main()
