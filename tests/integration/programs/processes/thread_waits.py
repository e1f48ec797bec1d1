"""Threads that wait in every way known to dstack, and threads that do not wait; no Ray.

Prints the waits as JSON by the names of the threads: ``kind``, ``what``, the awaited threads as ``threads`` or
``all_of``, and ``timeout_s`` if there is one; None for a thread that does not wait.
"""

import asyncio
import concurrent.futures as cf
import json
import multiprocessing
import os
import queue
import sched
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

expected: dict[str, Any] = {}


def start(name: str, call: Callable[[], object], **expects: Any) -> threading.Thread:
    """Start a thread that makes this call, and record its expected wait."""
    thread = threading.Thread(target=lambda: call(), name=name, daemon=True)
    expected[name] = expects or None
    thread.start()
    return thread


KEPT: list[Any] = []


def holds(name: str, *locks: Any) -> None:
    """Start a thread that holds these locks in ``with`` blocks for ever."""
    acquired = threading.Event()

    def run() -> None:
        if not locks:
            acquired.set()
            time.sleep(10_000)
        with locks[0]:
            hold(locks[1:])

    def hold(remaining: tuple[Any, ...]) -> None:
        for _ in (1,):
            if not remaining:
                acquired.set()
                time.sleep(10_000)
            with remaining[0]:
                hold(remaining[1:])

    start(name, run)
    acquired.wait()


def locks() -> None:
    lock, rlock, condition = threading.Lock(), threading.RLock(), threading.Condition(threading.Lock())
    holds("holder", lock, rlock, condition)
    by_with = {"kind": "lock", "what": "threading.Lock.acquire", "threads": ["holder"], "inferred": True}
    start("lock-with", lambda: enter(lock), **by_with)
    start("lock-acquire", lambda: lock.acquire(), **by_with)
    start("lock-timeout", lambda: lock.acquire(timeout=5000.5), **by_with, timeout_s=5000.5)
    start("condition-enter", lambda: enter(condition), **by_with)
    of_rlock = {"kind": "lock", "what": "threading.RLock.acquire", "threads": ["holder"]}
    start("rlock", lambda: enter(rlock), **of_rlock)
    start("rlock-timeout", lambda: rlock.acquire(True, 4000), **of_rlock, timeout_s=4000.0)
    locked = threading.Lock()
    locked.acquire()
    start("locked-by-acquire", lambda: locked.acquire(), kind="lock", what="threading.Lock.acquire", threads=[])
    own = threading.Lock()
    start("own-lock", lambda: enter(own, own), **{**by_with, "threads": ["own-lock"]})


def enter(*several: Any) -> None:
    with several[0]:
        if several[1:]:
            enter(*several[1:])


def conditions() -> None:
    waiting, notified = threading.Condition(), threading.Condition()
    start("condition-wait", lambda: wait_in(waiting), kind="other", what="threading.Condition.wait")
    start(
        "condition-timeout",
        lambda: wait_in(waiting, 3000),
        kind="other",
        what="threading.Condition.wait",
        timeout_s=3000.0,
    )
    start("notified", lambda: wait_in(notified), kind="lock", what="threading.RLock.acquire", threads=["notifier"])
    until(lambda: len(notified._waiters) == 1)  # type: ignore[attr-defined]  # threading's own
    holds_and_notifies("notifier", notified)
    # While it waits for the condition, it does not hold the lock of its with block.
    shared = threading.Lock()
    of_shared = threading.Condition(shared)
    start("let-go", lambda: wait_in(of_shared), kind="other", what="threading.Condition.wait")
    until(lambda: len(of_shared._waiters) == 1)  # type: ignore[attr-defined]  # threading's own
    shared.acquire()
    start("not-of-let-go", lambda: enter(shared), kind="lock", what="threading.Lock.acquire", threads=[])


def wait_in(condition: threading.Condition, timeout: float | None = None) -> None:
    with condition:
        condition.wait(timeout)


def holds_and_notifies(name: str, condition: threading.Condition) -> None:
    def run() -> None:
        with condition:
            condition.notify_all()
            time.sleep(10_000)

    start(name, run)


def others() -> None:
    full: queue.Queue[int] = queue.Queue(1)
    full.put(1)
    start("event", lambda: threading.Event().wait(), kind="other", what="threading.Event.wait")
    start("semaphore", lambda: threading.Semaphore(0).acquire(), kind="other", what="threading.Semaphore.acquire")
    start("barrier", lambda: threading.Barrier(2).wait(), kind="other", what="threading.Barrier.wait")
    start("queue-get", lambda: queue.Queue[int]().get(), kind="other", what="queue.Queue.get")
    start(
        "queue-timeout",
        lambda: queue.Queue[int]().get(timeout=2000),
        kind="other",
        what="queue.Queue.get",
        timeout_s=2000.0,
    )
    start("queue-put", lambda: full.put(2), kind="other", what="queue.Queue.put")
    start("queue-join", lambda: full.join(), kind="other", what="queue.Queue.join")
    if sys.version_info < (3, 13):
        start("simple-queue", lambda: queue.SimpleQueue[int]().get(), kind="other", what="queue.SimpleQueue.get")
        start(
            "simple-queue-timeout",
            lambda: queue.SimpleQueue[int]().get(timeout=3000),
            kind="other",
            what="queue.SimpleQueue.get",
            timeout_s=3000.0,
        )
        start("other-timeout", takes_in_time, kind="other", what="queue.SimpleQueue.get")
    locked = multiprocessing.Lock()
    locked.acquire()
    start("process-lock", lambda: locked.acquire(), kind="other", what="multiprocessing lock")
    here, _there = multiprocessing.Pipe()
    start("connection", here.recv, kind="other", what="multiprocessing.Connection.recv")
    child = subprocess.Popen(["sleep", "10000"])
    start("subprocess", child.wait, kind="other", what="subprocess.Popen.wait")
    left, _right = socket.socketpair()
    start("socket", lambda: left.makefile("rb").read(1), kind="other", what="reading from a socket")
    selector = selectors.DefaultSelector()
    selector.register(left, selectors.EVENT_READ)
    start("selector", selector.select, kind="other", what="selectors.select")
    start("event-loop", lambda: asyncio.run(asyncio.Event().wait()), kind="await", what="asyncio event loop")
    KEPT.extend([_there, _right, child])


def takes_in_time(timeout: float = 5.0) -> None:
    """Waits without a timeout; that of the caller is for something else."""
    queue.SimpleQueue[int]().get()


def futures() -> None:
    never = threading.Event()
    pool = cf.ThreadPoolExecutor(2, thread_name_prefix="pool")
    one, two = pool.submit(never.wait), pool.submit(never.wait)
    queued = pool.submit(never.wait)
    until(lambda: one.running() and two.running())
    done: cf.Future[bool] = cf.Future()
    done.set_result(True)
    nobodys: cf.Future[bool] = cf.Future()
    for name in ("pool_0", "pool_1"):
        expected[name] = {"kind": "other", "what": "threading.Event.wait"}
    start("running", lambda: one.result(), **call_of("Future.result"), threads=["pool_0"])
    start(
        "running-timeout",
        lambda: two.exception(1000),
        **call_of("Future.exception"),
        threads=["pool_1"],
        timeout_s=1000.0,
    )
    any_of_pool = {"threads": ["pool_0", "pool_1"], "inferred": True}
    start("queued", lambda: queued.result(), **call_of("Future.result"), **any_of_pool)
    start("nobodys", lambda: nobodys.result(), **call_of("Future.result"), threads=[])
    start(
        "all", lambda: cf.wait([one, two, done]), **call_of("concurrent.futures.wait"), all_of=[["pool_0"], ["pool_1"]]
    )
    mixed = [["pool_0"], ["pool_0", "pool_1"], []]
    start(
        "all-mixed",
        lambda: cf.wait([one, queued, nobodys]),
        **call_of("concurrent.futures.wait"),
        all_of=mixed,
        inferred=True,
    )
    start("first", lambda: first(one, two), **call_of("concurrent.futures.wait"), threads=["pool_0", "pool_1"])
    start("first-or-nobodys", lambda: first(one, nobodys), **call_of("concurrent.futures.wait"), threads=[])
    start(
        "as-completed",
        lambda: list(cf.as_completed([one, two, done])),
        **call_of("concurrent.futures.as_completed"),
        threads=["pool_0", "pool_1"],
    )
    start("map", lambda: list(pool.map(never.wait, [None])), **call_of("Future.result"), **any_of_pool)


def call_of(what: str) -> Any:
    return {"kind": "future", "what": what}


def first(*several: Any) -> None:
    cf.wait(several, return_when=cf.FIRST_COMPLETED)


def joins() -> None:
    never = threading.Event()
    busy = cf.ThreadPoolExecutor(1, thread_name_prefix="closing")
    running = busy.submit(never.wait)
    idle = cf.ThreadPoolExecutor(1, thread_name_prefix="idle")
    idle.submit(int).result()
    KEPT.append(idle)
    until(running.running)
    expected["closing_0"] = {"kind": "other", "what": "threading.Event.wait"}
    expected["idle_0"] = None
    joined = start("joined", never.wait, kind="other", what="threading.Event.wait")
    start("join", joined.join, kind="thread.join", threads=["joined"])
    start("join-timeout", lambda: joined.join(6000), kind="thread.join", threads=["joined"], timeout_s=6000.0)
    start("shutdown", busy.shutdown, kind="thread.join", what="ThreadPoolExecutor.shutdown", threads=["closing_0"])


def kernel_waits() -> None:
    read, _write = os.pipe()
    start("reads", lambda: os.read(read, 1), kind="other", what="system call read")


def timers() -> None:
    timer = threading.Timer(9000, os._exit, (7,))
    timer.name, timer.daemon = "timer", True
    expected["timer"] = {"kind": "other", "what": "threading.Event.wait", "timeout_s": 9000.0}
    timer.start()
    scheduler = sched.scheduler()
    for after_s, action in ((9000, print), (9001, cancel_all)):
        scheduler.enter(after_s, 0, action)
    start("scheduler", scheduler.run)


def cancel_all() -> None:
    """Would cancel what is waited for."""


def not_waits() -> None:
    start("sleeps", lambda: time.sleep(10_000))
    start("computes", compute)


def compute() -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)  # leaves the CPU to the test
    number = 0
    while True:
        number += 1


def until(condition: Callable[[], object]) -> None:
    while not condition():
        time.sleep(0.001)


def main() -> None:
    for make in (locks, conditions, others, futures, joins, kernel_waits, timers, not_waits):
        make()
    threads = {thread.name: thread.native_id for thread in threading.enumerate()}
    print("expected", json.dumps({"calls": expected, "threads": threads}))
    print("ready", flush=True)
    time.sleep(10_000)


if __name__ == "__main__":
    main()
