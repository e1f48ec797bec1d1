"""Threads and coroutines in spans of every form, finished spans, and what a program may have put in their place."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator

from dstack import spans
from dstack.spans import span

never = threading.Event()
entered = threading.Semaphore(0)


def wait() -> None:
    entered.release()
    never.wait()


def nested() -> None:
    with span("outer"):
        inner()


def inner() -> None:
    with span("inner"), span("x" * 1000):
        wait()


@span("step")
def decorated(depth: int) -> None:
    decorated(depth - 1) if depth else wait()


@contextlib.contextmanager
def phase() -> Iterator[None]:
    with span("phase"):
        yield


def in_context_manager() -> None:
    with phase():
        wait()


def after_spans() -> None:
    with span("over"):
        pass
    wait()


def malformed() -> None:
    with span(7):  # type: ignore[arg-type]
        wait()


@span("request")
async def request() -> None:
    await asyncio.gather(child(), *(asyncio.create_task(one, name="child") for one in (child(),)))


async def child() -> None:
    with span("decode"):
        entered.release()
        await asyncio.Event().wait()


async def plain() -> None:
    entered.release()
    await asyncio.Event().wait()


async def serve() -> None:
    with span("startup"):
        begun = asyncio.create_task(plain(), name="plain")
    await asyncio.gather(begun, asyncio.create_task(request(), name="request"))


def run_loop() -> None:
    with span("serve"):
        asyncio.run(serve())


def main() -> None:
    for number in range(3):
        with span(f"finished {number}"):
            time.sleep(0.01)
    spans.OPEN[object()] = None  # type: ignore[index]
    wrong: list[object] = [("short", 1.0), (1, 2.0, 3.0, 4), ("late", 5.0, 1.0, 1), ("future", 1e18, 2e18, 1), "text"]
    spans.FINISHED.extend(wrong)  # type: ignore[arg-type]
    targets = (nested, lambda: decorated(1), in_context_manager, after_spans, malformed)
    names = ("nested", "decorated", "context manager", "after", "malformed")
    for target, name in zip(targets, names, strict=True):
        threading.Thread(target=target, name=name, daemon=True).start()
    threading.Thread(target=run_loop, name="loop", daemon=True).start()
    for _ in range(len(targets) + 3):
        entered.acquire()
    print("ready", flush=True)
    with span("main"):
        never.wait()


main()
