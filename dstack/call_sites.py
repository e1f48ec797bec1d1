"""The table of call sites: those of Python and of Ray itself, and those of each library's room."""

from __future__ import annotations

from dstack.libraries import collective, compiled_graphs, data, serve, torch, train
from dstack.observed.call_site import BOTH_RAYS, Site, caller, leaf
from dstack.observed.calls import Call, CallKind

THREADING, FUTURES = "/threading.py", "/concurrent/futures/_base.py"
SUBPROCESS, MULTIPROCESSING = "/subprocess.py", "/multiprocessing/"
ITEM, ROOM, SET = "an item in the queue", "room in the queue", "a call of Event.set"
PARTIES = "the other parties of the barrier"
DONE = "Queue.task_done for each item"
RELEASE = "a release of the semaphore"
NOTIFY = "a call of Condition.notify"

# Ray

RAY_GET = Site("ray.get", "ray.get", kind="ray.get")
RAY_WAIT = Site("ray.wait", "ray.wait", kind="ray.wait")
GENERATOR = Site("generator", "generator", kind="generator")
GROUP_WAIT = Site(
    "ray.util.PlacementGroup.wait",
    "PlacementGroup.wait",
    (
        leaf("/ray/util/placement_group.py", "_call_placement_group_ready", BOTH_RAYS),
        caller("/ray/util/placement_group.py", "wait", BOTH_RAYS),
    ),
)
SHUTDOWN = Site("ray.shutdown", "ray.shutdown", (caller("/ray/_private/worker.py", "shutdown", BOTH_RAYS),))
DIRECT_TRANSPORT = Site("ray.direct_transport", "Ray Direct Transport", kind="future", library="ray.direct_transport")
"""A call names the object whose tensors it waits for."""
RAY = (
    RAY_GET,
    RAY_WAIT,
    GENERATOR,
    GROUP_WAIT,
    DIRECT_TRANSPORT,
    Site("ray.main_loop", "", (leaf("/ray/_private/worker.py", "main_loop", BOTH_RAYS),), is_idle=True),
    Site("ray.gc", "", (caller("/ray/_private/gc_collect_manager.py", "run", "Ray 2.60"),), is_idle=True),
    SHUTDOWN,
    Site(
        "ray.function_manager.fetch",
        "fetch of a function from the GCS",
        (leaf("/ray/_private/function_manager.py", "fetch_registered_method", BOTH_RAYS),),
    ),
    Site(
        "ray.util.queue.Queue.get",
        "Queue.get of ray.util.queue",
        (caller("/ray/util/queue.py", "get", BOTH_RAYS),),
        ended_by=ITEM,
    ),
    Site(
        "ray.util.queue.Queue.put",
        "Queue.put of ray.util.queue",
        (caller("/ray/util/queue.py", "put", BOTH_RAYS),),
        ended_by=ROOM,
    ),
    Site(
        "ray.util.ActorPool.get_next",
        "ActorPool.get_next",
        (caller("/ray/util/actor_pool.py", "get_next", BOTH_RAYS),),
    ),
    Site(
        "ray.util.ActorPool.get_next_unordered",
        "ActorPool.get_next_unordered",
        (caller("/ray/util/actor_pool.py", "get_next_unordered", BOTH_RAYS),),
    ),
    Site(
        "ray.util.multiprocessing.Pool.result",
        "ray.util.multiprocessing.Pool result",
        (
            caller("/ray/util/multiprocessing/pool.py", "get", BOTH_RAYS),
            caller("/ray/util/multiprocessing/pool.py", "next", BOTH_RAYS),
        ),
    ),
    Site(
        "ray.util.multiprocessing.Pool.join",
        "ray.util.multiprocessing.Pool.join",
        (caller("/ray/util/multiprocessing/pool.py", "join", BOTH_RAYS),),
        may_be_idle=False,
    ),
)

# Threads

THREAD_JOIN = Site("thread.join", "thread.join", kind="thread.join", may_be_idle=False)
LOCK = Site("threading.Lock.acquire", "threading.Lock.acquire", kind="lock", timeout="none", may_be_idle=False)
RLOCK = Site("threading.RLock.acquire", "threading.RLock.acquire", kind="lock", timeout="none", may_be_idle=False)
SIMPLE_QUEUE = Site("queue.SimpleQueue.get", "queue.SimpleQueue.get", timeout="none", ended_by=ITEM)
BARRIER = Site(
    "threading.Barrier.wait",
    "threading.Barrier.wait",
    (caller(THREADING, "_wait"),),
    ended_by=PARTIES,
    may_be_idle=False,
)
EXIT = Site("process.exit", "the exit of its process (threading._shutdown)", (leaf(THREADING, "_shutdown"),))
"""The main thread waits for all threads that are no daemons, before the functions of ``atexit`` run."""
THREADS = (
    THREAD_JOIN,
    LOCK,
    RLOCK,
    SIMPLE_QUEUE,
    BARRIER,
    Site(
        "threading.Condition.wait",
        "threading.Condition.wait",
        (leaf(THREADING, "wait", having="waiter"),),
        ended_by=NOTIFY,
    ),
    Site("threading.Event.wait", "threading.Event.wait", (caller(THREADING, "wait", having="signaled"),), ended_by=SET),
    Site(
        "threading.Semaphore.acquire",
        "threading.Semaphore.acquire",
        (caller(THREADING, "acquire", having="rc"),),
        ended_by=RELEASE,
        may_be_idle=False,
    ),
    EXIT,
    Site("queue.Queue.get", "queue.Queue.get", (caller("/queue.py", "get"),), ended_by=ITEM),
    Site("queue.Queue.put", "queue.Queue.put", (caller("/queue.py", "put"),), ended_by=ROOM, may_be_idle=False),
    Site("queue.Queue.join", "queue.Queue.join", (caller("/queue.py", "join"),), ended_by=DONE, may_be_idle=False),
    Site("Future.result", "Future.result", (caller(FUTURES, "result"),), kind="future"),
    Site("Future.exception", "Future.exception", (caller(FUTURES, "exception"),), kind="future"),
    Site("concurrent.futures.wait", "concurrent.futures.wait", (caller(FUTURES, "wait"),), kind="future"),
    Site(
        "concurrent.futures.as_completed",
        "concurrent.futures.as_completed",
        (caller(FUTURES, "as_completed"),),
        kind="future",
    ),
    Site(
        "ThreadPoolExecutor.shutdown",
        "ThreadPoolExecutor.shutdown",
        (caller("/concurrent/futures/thread.py", "shutdown"),),
    ),
    Site(
        "ProcessPoolExecutor.shutdown",
        "ProcessPoolExecutor.shutdown",
        (caller("/concurrent/futures/process.py", "shutdown"),),
    ),
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

PROCESS_LOCK = Site(
    "multiprocessing.lock",
    "multiprocessing lock",
    (leaf(f"{MULTIPROCESSING}synchronize.py", "__enter__"),),
    timeout="none",
    is_of_children=True,
)
WAITPID = Site("os.waitpid", "os.waitpid", timeout="none")
KERNEL = Site("kernel.call", "system call", timeout="none")
"""A wait at no other site, as the kernel shows it; a call names the function of the library or the system call."""
PROCESSES = (
    PROCESS_LOCK,
    WAITPID,
    KERNEL,
    Site("selectors.select", "selectors.select", (leaf("/selectors.py", "select"),)),
    Site("socket.accept", "socket.accept", (leaf("/socket.py", "accept"),), timeout="unknown"),
    Site(
        "socket.read",
        "reading from a socket",
        (leaf("/socket.py", "readinto"), leaf("/ssl.py", "read")),
        timeout="unknown",
    ),
    Site("socketserver.serve_forever", "socketserver.serve_forever", (caller("/socketserver.py", "serve_forever"),)),
    Site(
        "ProcessPoolExecutor.manager",
        "waiting for the processes of a ProcessPoolExecutor",
        (caller("/concurrent/futures/process.py", "wait_result_broken_or_wakeup"),),
        is_of_children=True,
    ),
    Site("subprocess.Popen.wait", "subprocess.Popen.wait", (leaf(SUBPROCESS, "_try_wait"),)),
    Site("subprocess.Popen.communicate", "subprocess.Popen.communicate", (caller(SUBPROCESS, "communicate"),)),
    Site(
        "multiprocessing.Connection.recv",
        "multiprocessing.Connection.recv",
        (leaf(f"{MULTIPROCESSING}connection.py", "_recv"),),
        is_of_children=True,
    ),
    Site(
        "multiprocessing.connection.wait",
        "multiprocessing.connection.wait",
        (caller(f"{MULTIPROCESSING}connection.py", "wait"),),
        is_of_children=True,
    ),
    Site(
        "multiprocessing.Process.join",
        "multiprocessing.Process.join",
        (leaf(f"{MULTIPROCESSING}popen_fork.py", "poll"), caller(f"{MULTIPROCESSING}process.py", "join")),
        may_be_idle=False,
        is_of_children=True,
    ),
    Site(
        "multiprocessing.Condition.wait",
        "multiprocessing.Condition.wait",
        (leaf(f"{MULTIPROCESSING}synchronize.py", "wait"),),
        ended_by=NOTIFY,
        is_of_children=True,
    ),
    Site(
        "multiprocessing.Event.wait",
        "multiprocessing.Event.wait",
        (caller(f"{MULTIPROCESSING}synchronize.py", "wait"),),
        ended_by=SET,
        is_of_children=True,
    ),
    Site(
        "multiprocessing.Queue.get",
        "multiprocessing.Queue.get",
        (caller(f"{MULTIPROCESSING}queues.py", "get"),),
        ended_by=ITEM,
        is_of_children=True,
    ),
    Site(
        "multiprocessing.Queue.put",
        "multiprocessing.Queue.put",
        (caller(f"{MULTIPROCESSING}queues.py", "put"),),
        ended_by=ROOM,
        may_be_idle=False,
        is_of_children=True,
    ),
    Site(
        "multiprocessing.manager",
        "reply of a multiprocessing manager",
        (caller(f"{MULTIPROCESSING}managers.py", "_callmethod"),),
        is_of_children=True,
    ),
    Site(
        "multiprocessing.Pool.result",
        "multiprocessing.Pool result",
        (caller(f"{MULTIPROCESSING}pool.py", "get"), caller(f"{MULTIPROCESSING}pool.py", "next")),
        is_of_children=True,
    ),
)

# Event loops and coroutines

EVENT_LOOP = Site(
    "asyncio.loop",
    "asyncio event loop",
    (
        leaf("/asyncio/runners.py", "run", "uvloop, which shows no frames of its own"),
        caller("/asyncio/base_events.py", "_run_once"),
    ),
)
"""An event loop that waits for events; not one that is blocked in a call."""
UNTIL_COMPLETE = Site("asyncio.run", "asyncio event loop", kind="await")
"""The thread of an event loop that runs until one coroutine has ended."""
AWAIT = Site("await", "await", kind="await")
OTHER_LOOP = Site("asyncio.other_loop", "start on another event loop", kind="await")
"""A coroutine awaits another one that the event loop of another thread has not begun yet."""
GATHER = Site("asyncio.gather", "asyncio.gather", kind="await")
SHIELD = Site("asyncio.shield", "asyncio.shield", kind="await")
WAIT_FOR = Site("asyncio.wait_for", "asyncio.wait_for", kind="await")
WAIT = Site("asyncio.wait", "asyncio.wait", kind="await")
AS_COMPLETED = Site("asyncio.as_completed", "asyncio.as_completed", kind="await")
TASK_GROUP = Site("asyncio.TaskGroup", "asyncio.TaskGroup", kind="await")
ANYIO_GROUP = Site("anyio.TaskGroup", "anyio.TaskGroup", kind="await")
TO_THREAD = Site("asyncio.to_thread", "asyncio.to_thread", kind="await")
ASYNC_LOCK = Site("asyncio.Lock.acquire", "asyncio.Lock.acquire", kind="lock", may_be_idle=False)
ASYNC_SEMAPHORE = Site(
    "asyncio.Semaphore.acquire", "asyncio.Semaphore.acquire", kind="lock", ended_by=RELEASE, may_be_idle=False
)
ASYNC_EVENT = Site("asyncio.Event.wait", "asyncio.Event.wait", ended_by=SET)
ASYNC_FUTURE = Site("asyncio.future", "asyncio future")
OF_ASYNCIO = Site("asyncio", "asyncio")
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
    Site("asyncio.Condition.wait", "asyncio.Condition.wait", ended_by=NOTIFY),
    Site("asyncio.Barrier.wait", "asyncio.Barrier.wait", ended_by=PARTIES, may_be_idle=False),
    Site("asyncio.Queue.get", "asyncio.Queue.get", ended_by=ITEM),
    Site("asyncio.Queue.put", "asyncio.Queue.put", ended_by=ROOM, may_be_idle=False),
    Site("asyncio.Queue.join", "asyncio.Queue.join", ended_by=DONE, may_be_idle=False),
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
    )
}
"""All sites by id."""


def site_of(id: str) -> Site:
    """The site with this id; one that this dstack does not know is named by it."""
    return SITES.get(id) or Site(id, id)


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
