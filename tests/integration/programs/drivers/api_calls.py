"""A driver that looks at its own cluster in every way there is, and prints as JSON what came of each."""

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
    return "rested"


def deadlock() -> Any:
    """A call that never ends: each of two actors waits for the other."""
    one, other = (ray.remote(Side).options(num_cpus=0).remote() for _ in range(2))
    ray.get([one.done.remote(), other.done.remote()])
    return one.meet.remote(other)


@contextlib.contextmanager
def raising(told: dict[str, Any]) -> Iterator[None]:
    """Notes the DeadlockFound that the code within ends with."""
    try:
        yield
    except dstack.DeadlockFound as error:
        told["raised"] = str(error)
        told["is_an_assertion"] = isinstance(pickle.loads(pickle.dumps(error)), AssertionError)


def breaks_the_main_thread(stuck: Any) -> dict[str, Any]:
    told: dict[str, Any] = {}
    with raising(told), dstack.guard(1, lambda hang: told.update(left_alone=hang.left_alone), break_deadlock=True):
        ray.get(stuck)
    return told


def leaves_other_threads(stuck: Any) -> dict[str, Any]:
    told: dict[str, Any] = {}
    hung = threading.Event()

    def note(hang: dstack.Hang) -> None:
        told["left_alone"] = hang.left_alone
        hung.set()

    @dstack.guard(1, note, break_deadlock=True)
    def get() -> None:
        ray.get(stuck)

    threading.Thread(target=get, daemon=True).start()
    hung.wait()
    return told


async def breaks_an_await(stuck: Any) -> dict[str, Any]:
    told: dict[str, Any] = {}

    @dstack.guard(1, lambda hang: None, break_deadlock=True)
    async def get() -> None:
        await stuck

    with raising(told):
        await get()
    told["goes_on"] = await asyncio.sleep(0, "yes")
    told["check"] = (await asyncio.to_thread(dstack.check)).verdict
    return told


def lets_slow_code_go_on() -> dict[str, Any]:
    told: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as directory:
        end = Path(directory) / "end"

        def note(hang: dstack.Hang) -> None:
            told.update(verdict=hang.diagnosis.verdict, left_alone=hang.left_alone)
            end.touch()

        with dstack.guard(1, note, break_deadlock=True):
            told["value"] = ray.get(ray.remote(wait_for).remote(end))
    return told


def asserts() -> dict[str, Any]:
    told: dict[str, Any] = {}
    with raising(told):
        dstack.assert_no_deadlock()
    return told


def state() -> list[Any]:
    """What a library must not change."""
    handlers = [repr(signal.getsignal(one)) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)]
    loggers = [logging.getLogger(name) for name in (None, "ray", "dstack")]
    return [handlers, [(one.level, list(map(repr, one.handlers))) for one in loggers], sorted(os.environ)]


def main() -> None:
    ray.init("local", num_cpus=2, include_dashboard=False)
    before = state()
    told: dict[str, Any] = {}
    taken = dstack.snapshot()
    told["sees itself"] = [worker.pid for worker in taken.workers if worker.is_driver] == [os.getpid()]
    told["clear"] = dstack.assert_no_deadlock(complete=True).verdict
    told["slow"] = lets_slow_code_go_on()
    stuck = deadlock()
    told["main thread"] = breaks_the_main_thread(stuck)
    told["other thread"] = leaves_other_threads(stuck)
    told["await"] = asyncio.run(breaks_an_await(stuck))
    told["assert"] = asserts()
    told["unchanged"] = state() == before and ray.get(ray.remote(wait_for).remote(Path("/"))) == "rested"
    print("told", json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
