"""The table of call sites: those of Python and of Ray itself, and those of each library's room."""

from __future__ import annotations

from dstack.libraries import collective, compiled_graphs, data, serve, torch, train, vllm
from dstack.observed.call_site import BOTH_RAYS, NEW_RAY, Site, caller, leaf, site
from dstack.observed.calls import Call, CallKind

THREADING, FUTURES = "/threading.py", "/concurrent/futures/_base.py"
SUBPROCESS, MULTIPROCESSING = "/subprocess.py", "/multiprocessing/"
ITEM, ROOM, SET = "an item in the queue", "room in the queue", "a call of Event.set"
PARTIES = "the other parties of the barrier"
DONE = "Queue.task_done for each item"
RELEASE = "a release of the semaphore"
NOTIFY = "a call of Condition.notify"

# Ray

RAY_GET = site("ray.get", kind="ray.get")
RAY_WAIT = site("ray.wait", kind="ray.wait")
GENERATOR = site("generator", kind="generator")
GROUP_WAIT = site(
    "ray.util.PlacementGroup.wait",
    leaf("/ray/util/placement_group.py", "_call_placement_group_ready", BOTH_RAYS),
    caller("/ray/util/placement_group.py", "wait", BOTH_RAYS),
    name="PlacementGroup.wait",
)
RAY_PUT = Site(
    "ray.put",
    "ray.put",
    (leaf("/ray/_private/worker.py", "put_object", BOTH_RAYS),),
    timeout="none",
    ended_by="room in the object store",
    may_be_idle=False,
    polls=True,
)
"""It sleeps 10 ms between two requests for room; with room it does not sleep."""
RAY_RETURN = Site(
    "ray.return",
    "the return of its value",
    timeout="none",
    ended_by="room in the object store",
    may_be_idle=False,
    polls=True,
)
"""The same for the value that a task returns, in C++ below Ray's main loop, which never sleeps by itself."""
ROOM_FOR_VALUES = (RAY_PUT.id, RAY_RETURN.id)
MAIN_LOOP = Site("ray.main_loop", "", (leaf("/ray/_private/worker.py", "main_loop", BOTH_RAYS),), is_idle=True)
SHUTDOWN = site("ray.shutdown", caller("/ray/_private/worker.py", "shutdown", BOTH_RAYS))
DIRECT_TRANSPORT = Site("ray.direct_transport", "Ray Direct Transport", kind="future", library="ray.direct_transport")
"""A call names the object whose tensors it waits for."""
RAY = (
    RAY_GET,
    RAY_WAIT,
    GENERATOR,
    GROUP_WAIT,
    RAY_PUT,
    RAY_RETURN,
    DIRECT_TRANSPORT,
    MAIN_LOOP,
    Site("ray.gc", "", (caller("/ray/_private/gc_collect_manager.py", "run", NEW_RAY),), is_idle=True),
    SHUTDOWN,
    site(
        "ray.function_manager.fetch",
        leaf("/ray/_private/function_manager.py", "fetch_registered_method", BOTH_RAYS),
        name="fetch of a function from the GCS",
    ),
    site(
        "ray.util.queue.Queue.get",
        caller("/ray/util/queue.py", "get", BOTH_RAYS),
        name="Queue.get of ray.util.queue",
        ended_by=ITEM,
    ),
    site(
        "ray.util.queue.Queue.put",
        caller("/ray/util/queue.py", "put", BOTH_RAYS),
        name="Queue.put of ray.util.queue",
        ended_by=ROOM,
    ),
    site(
        "ray.util.ActorPool.get_next",
        caller("/ray/util/actor_pool.py", "get_next", BOTH_RAYS),
        name="ActorPool.get_next",
    ),
    site(
        "ray.util.ActorPool.get_next_unordered",
        caller("/ray/util/actor_pool.py", "get_next_unordered", BOTH_RAYS),
        name="ActorPool.get_next_unordered",
    ),
    site(
        "ray.util.multiprocessing.Pool.result",
        caller("/ray/util/multiprocessing/pool.py", "get", BOTH_RAYS),
        caller("/ray/util/multiprocessing/pool.py", "next", BOTH_RAYS),
        name="ray.util.multiprocessing.Pool result",
    ),
    site(
        "ray.util.multiprocessing.Pool.join",
        caller("/ray/util/multiprocessing/pool.py", "join", BOTH_RAYS),
        may_be_idle=False,
    ),
)

# Threads

THREAD_JOIN = site("thread.join", kind="thread.join", may_be_idle=False)
LOCK = site("threading.Lock.acquire", kind="lock", timeout="none", may_be_idle=False)
RLOCK = site("threading.RLock.acquire", kind="lock", timeout="none", may_be_idle=False)
SIMPLE_QUEUE = site("queue.SimpleQueue.get", timeout="none", ended_by=ITEM)
BARRIER = site("threading.Barrier.wait", caller(THREADING, "_wait"), ended_by=PARTIES, may_be_idle=False)
EXIT = site("process.exit", leaf(THREADING, "_shutdown"), name="the exit of its process (threading._shutdown)")
"""The main thread waits for all threads that are no daemons, before the functions of ``atexit`` run."""
THREADS = (
    THREAD_JOIN,
    LOCK,
    RLOCK,
    SIMPLE_QUEUE,
    BARRIER,
    site("threading.Condition.wait", leaf(THREADING, "wait", having="waiter"), ended_by=NOTIFY),
    site("threading.Event.wait", caller(THREADING, "wait", having="signaled"), ended_by=SET),
    site("threading.Semaphore.acquire", caller(THREADING, "acquire", having="rc"), ended_by=RELEASE, may_be_idle=False),
    EXIT,
    site("queue.Queue.get", caller("/queue.py", "get"), ended_by=ITEM),
    site("queue.Queue.put", caller("/queue.py", "put"), ended_by=ROOM, may_be_idle=False),
    site("queue.Queue.join", caller("/queue.py", "join"), ended_by=DONE, may_be_idle=False),
    site("Future.result", caller(FUTURES, "result"), kind="future"),
    site("Future.exception", caller(FUTURES, "exception"), kind="future"),
    site("concurrent.futures.wait", caller(FUTURES, "wait"), kind="future"),
    site("concurrent.futures.as_completed", caller(FUTURES, "as_completed"), kind="future"),
    site("ThreadPoolExecutor.shutdown", caller("/concurrent/futures/thread.py", "shutdown")),
    site("ProcessPoolExecutor.shutdown", caller("/concurrent/futures/process.py", "shutdown")),
    Site(
        "executor.worker",
        "",
        (
            leaf("/concurrent/futures/thread.py", "_worker"),
            leaf(f"{MULTIPROCESSING}pool.py", "worker"),
        ),
        is_idle=True,
    ),
)

# Processes, sockets and files

PROCESS_LOCK = site(
    "multiprocessing.lock",
    leaf(f"{MULTIPROCESSING}synchronize.py", "__enter__"),
    name="multiprocessing lock",
    timeout="none",
    is_of_children=True,
)
WAITPID = site("os.waitpid", timeout="none")
KERNEL = site("kernel.call", name="system call", timeout="none")
"""A wait at no other site, as the kernel shows it; a call names the function of the library or the system call."""
PROCESSES = (
    PROCESS_LOCK,
    WAITPID,
    KERNEL,
    site("selectors.select", leaf("/selectors.py", "select")),
    site("socket.accept", leaf("/socket.py", "accept"), timeout="unknown"),
    site(
        "socket.read",
        leaf("/socket.py", "readinto"),
        leaf("/ssl.py", "read"),
        name="reading from a socket",
        timeout="unknown",
    ),
    site("socketserver.serve_forever", caller("/socketserver.py", "serve_forever")),
    site(
        "ProcessPoolExecutor.manager",
        caller("/concurrent/futures/process.py", "wait_result_broken_or_wakeup"),
        name="waiting for the processes of a ProcessPoolExecutor",
        is_of_children=True,
    ),
    site("subprocess.Popen.wait", leaf(SUBPROCESS, "_try_wait")),
    site("subprocess.Popen.communicate", caller(SUBPROCESS, "communicate")),
    site("multiprocessing.Connection.recv", leaf(f"{MULTIPROCESSING}connection.py", "_recv"), is_of_children=True),
    site("multiprocessing.connection.wait", caller(f"{MULTIPROCESSING}connection.py", "wait"), is_of_children=True),
    site(
        "multiprocessing.Process.join",
        leaf(f"{MULTIPROCESSING}popen_fork.py", "poll"),
        caller(f"{MULTIPROCESSING}process.py", "join"),
        may_be_idle=False,
        is_of_children=True,
    ),
    site(
        "multiprocessing.Condition.wait",
        leaf(f"{MULTIPROCESSING}synchronize.py", "wait"),
        ended_by=NOTIFY,
        is_of_children=True,
    ),
    site(
        "multiprocessing.Event.wait",
        caller(f"{MULTIPROCESSING}synchronize.py", "wait"),
        ended_by=SET,
        is_of_children=True,
    ),
    site("multiprocessing.Queue.get", caller(f"{MULTIPROCESSING}queues.py", "get"), ended_by=ITEM, is_of_children=True),
    site(
        "multiprocessing.Queue.put",
        caller(f"{MULTIPROCESSING}queues.py", "put"),
        ended_by=ROOM,
        may_be_idle=False,
        is_of_children=True,
    ),
    site(
        "multiprocessing.manager",
        caller(f"{MULTIPROCESSING}managers.py", "_callmethod"),
        name="reply of a multiprocessing manager",
        is_of_children=True,
    ),
    site(
        "multiprocessing.Pool.result",
        caller(f"{MULTIPROCESSING}pool.py", "get"),
        caller(f"{MULTIPROCESSING}pool.py", "next"),
        name="multiprocessing.Pool result",
        is_of_children=True,
    ),
)

# Event loops and coroutines

EVENT_LOOP = site(
    "asyncio.loop",
    leaf("/asyncio/runners.py", "run", "uvloop, which shows no frames of its own"),
    caller("/asyncio/base_events.py", "_run_once"),
    name="asyncio event loop",
)
"""An event loop that waits for events; not one that is blocked in a call."""
UNTIL_COMPLETE = site("asyncio.run", name="asyncio event loop", kind="await")
"""The thread of an event loop that runs until one coroutine has ended."""
AWAIT = site("await", kind="await")
OTHER_LOOP = site("asyncio.other_loop", name="start on another event loop", kind="await")
"""A coroutine awaits another one that the event loop of another thread has not begun yet."""
GATHER = site("asyncio.gather", kind="await")
SHIELD = site("asyncio.shield", kind="await")
WAIT_FOR = site("asyncio.wait_for", kind="await")
WAIT = site("asyncio.wait", kind="await")
AS_COMPLETED = site("asyncio.as_completed", kind="await")
TASK_GROUP = site("asyncio.TaskGroup", kind="await")
ANYIO_GROUP = site("anyio.TaskGroup", kind="await")
TO_THREAD = site("asyncio.to_thread", kind="await")
ASYNC_LOCK = site("asyncio.Lock.acquire", kind="lock", may_be_idle=False)
ASYNC_SEMAPHORE = site("asyncio.Semaphore.acquire", kind="lock", ended_by=RELEASE, may_be_idle=False)
ASYNC_EVENT = site("asyncio.Event.wait", ended_by=SET)
ASYNC_FUTURE = site("asyncio.future", name="asyncio future")
OF_ASYNCIO = site("asyncio")
"""Any other function of asyncio, by which a call is named."""
COROUTINES = (
    EVENT_LOOP,
    UNTIL_COMPLETE,
    AWAIT,
    OTHER_LOOP,
    GATHER,
    SHIELD,
    WAIT_FOR,
    WAIT,
    AS_COMPLETED,
    TASK_GROUP,
    ANYIO_GROUP,
    TO_THREAD,
    ASYNC_LOCK,
    ASYNC_SEMAPHORE,
    ASYNC_EVENT,
    ASYNC_FUTURE,
    OF_ASYNCIO,
    site("asyncio.Condition.wait", ended_by=NOTIFY),
    site("asyncio.Barrier.wait", ended_by=PARTIES, may_be_idle=False),
    site("asyncio.Queue.get", ended_by=ITEM),
    site("asyncio.Queue.put", ended_by=ROOM, may_be_idle=False),
    site("asyncio.Queue.join", ended_by=DONE, may_be_idle=False),
)

SITES = {
    site.id: site
    for site in (
        *RAY,
        *THREADS,
        *PROCESSES,
        *COROUTINES,
        *collective.SITES,
        *compiled_graphs.SITES,
        *data.SITES,
        *serve.SITES,
        *torch.SITES,
        *train.SITES,
        train.VALIDATION,
        *vllm.SITES,
    )
}
"""All sites by id."""


def site_of(id: str) -> Site:
    """The site with this id; one that this dstack does not know is named by it."""
    return SITES.get(id) or site(id)


def kind_of(call: Call) -> CallKind:
    """The kind of a call, by the site where it blocks."""
    return site_of(call.site).kind


def named_site(call: Call) -> Site:
    """The site by which users know a call."""
    return site_of(call.within or call.site)


def name_of(call: Call) -> str | None:
    """The user's name of a call, None if its kind says as much."""
    site = named_site(call)
    return call.name or (None if site.id == site.kind else site.name)
