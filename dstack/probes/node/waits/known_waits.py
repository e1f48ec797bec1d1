"""Functions in which threads wait, and the names of these waits in the user's terms.

A thread waits if its innermost frame is in :data:`WAITS` and the kernel shows it blocked. Outward from there, each
frame that is in one of the tables gives the wait a better name, up to the first frame of the user's own code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from dstack.probes.node.threads import Frame, is_in

IDLE = ""
"""The name of a place that is no wait: an idle thread."""
ASYNCIO = "/asyncio/"
EVENT_LOOP = "asyncio event loop"
"""The name of an event loop that waits for events; not of one that is blocked in a call."""
ALL_PYTHONS = "Python 3.10 to 3.14"
BOTH_RAYS = "Ray 2.46 and 2.60"
NOT_RUN = "torch's own names, not run"

CHANNEL = "/ray/experimental/channel/shared_memory_channel.py"
COLLECTIVE = "/ray/util/collective/collective.py"
DATA = "/ray/data/_internal/execution/streaming_executor_state.py"
RAY_GLOO = "/ray/util/collective/collective_group/torch_gloo_collective_group.py"
RENDEZVOUS = "/torch/distributed/rendezvous.py"
TORCH = "/torch/distributed/distributed_c10d.py"
TORCH_OPERATOR = ("/torch/_ops.py", "__call__")
TORCH_SEEN = "torch 2.13, gloo"
TRAIN = "/ray/train/v2/_internal/execution/collective_impl.py"


@dataclass(frozen=True, slots=True)
class Place:
    """A function by the end of its file's path; ``having`` is a local that distinguishes it from namesakes.

    ``seen`` has the versions on which it was verified. ``is_meeting``: similar processes wait there for each other,
    whatever object each of them calls. ``polls``: the library sleeps there repeatedly until another process has
    joined. ``operation`` is the name that the ``library`` of a process group gives to a call on it.
    """

    file: str
    function: str
    name: str
    seen: str
    having: str | None = None
    is_meeting: bool = False
    polls: bool = False
    operation: str = ""
    library: str = ""


def _operations(file: str, library: str, seen: str, names: dict[str, str], *, polls: bool = False) -> tuple[Place, ...]:
    """Rows for the operations of a library on process groups, by function."""
    return tuple(
        Place(file, function, f"{name} of {library}", seen, polls=polls, operation=name, library=library)
        for function, name in names.items()
    )


_TORCH_NAMES = """
all_gather all_gather_coalesced all_gather_into_tensor all_gather_object all_reduce all_reduce_coalesced all_to_all
all_to_all_single barrier batch_isend_irecv broadcast broadcast_object_list gather gather_object init_process_group
irecv isend monitored_barrier new_group recv recv_object_list reduce reduce_scatter reduce_scatter_tensor scatter
scatter_object_list send send_object_list split_group
"""
_SAME_IN_TORCH = {
    "all_gather_single": "all_gather_into_tensor",
    "_all_gather_base": "all_gather_into_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
}
"""Functions of torch that are one operation under several names."""
TORCH_CALLS = _operations(
    TORCH,
    "torch.distributed",
    TORCH_SEEN,
    {**{name: name for name in _TORCH_NAMES.split()}, **_SAME_IN_TORCH},
    polls=True,
)
"""They sleep on a futex with gloo, and poll in C++ with NCCL's blocking wait, which was not run."""
_RAY_NAMES = """
allgather allgather_multigpu allreduce allreduce_multigpu barrier broadcast broadcast_multigpu init_collective_group
recv recv_multigpu reduce reduce_multigpu reducescatter reducescatter_multigpu send send_multigpu
"""
RAY_COLLECTIVES = _operations(COLLECTIVE, "ray.util.collective", BOTH_RAYS, {name: name for name in _RAY_NAMES.split()})

(WAIT_TENSOR,) = _operations(
    "/torch/distributed/_functional_collectives.py",
    "torch.distributed",
    TORCH_SEEN,
    {"wait_tensor": "wait_tensor"},
)

WAITS = (
    Place("/threading.py", "wait", "threading.Condition.wait", ALL_PYTHONS, having="waiter"),
    Place("/threading.py", "_shutdown", "exit of the process, until its other threads end", ALL_PYTHONS),
    Place("/selectors.py", "select", "selectors.select", ALL_PYTHONS),
    Place("/subprocess.py", "_try_wait", "subprocess.Popen.wait", ALL_PYTHONS),
    Place("/multiprocessing/connection.py", "_recv", "multiprocessing.Connection.recv", ALL_PYTHONS),
    Place("/multiprocessing/popen_fork.py", "poll", "multiprocessing.Process.join", ALL_PYTHONS),
    Place("/multiprocessing/synchronize.py", "__enter__", "multiprocessing lock", ALL_PYTHONS),
    Place("/multiprocessing/synchronize.py", "wait", "multiprocessing.Condition.wait", ALL_PYTHONS),
    Place("/socket.py", "accept", "socket.accept", ALL_PYTHONS),
    Place("/socket.py", "readinto", "reading from a socket", ALL_PYTHONS),
    Place("/ssl.py", "read", "reading from a socket", ALL_PYTHONS),
    Place("/asyncio/runners.py", "run", EVENT_LOOP, "uvloop, which shows no frames of its own"),
    Place("/concurrent/futures/thread.py", "_worker", IDLE, ALL_PYTHONS),
    Place("/multiprocessing/pool.py", "worker", IDLE, ALL_PYTHONS),
    Place("/ray/_private/worker.py", "main_loop", IDLE, BOTH_RAYS),
    Place("/ray/util/placement_group.py", "_call_placement_group_ready", "PlacementGroup.wait", BOTH_RAYS),
    Place(
        "/ray/_private/function_manager.py", "fetch_registered_method", "fetch of a function from the GCS", BOTH_RAYS
    ),
    Place(CHANNEL, "write", "write to a compiled graph's channel", BOTH_RAYS),
    *TORCH_CALLS,
    Place(TORCH, "_new_process_group_helper", "start of a process group of torch.distributed", TORCH_SEEN, polls=True),
    Place(TORCH, "_store_based_barrier", "start of a process group of torch.distributed", TORCH_SEEN, polls=True),
    Place(RENDEZVOUS, "_create_c10d_store", "start of a process group of torch.distributed", TORCH_SEEN, polls=True),
    Place(RAY_GLOO, "_rendezvous", "start of a ray.util.collective group", "Ray 2.60", polls=True),
    WAIT_TENSOR,
    Place("/torch/cuda/__init__.py", "synchronize", "torch.cuda.synchronize", NOT_RUN),
    Place("/torch/cuda/streams.py", "synchronize", "torch.cuda.synchronize", NOT_RUN),
)

NAMES = (
    Place("/threading.py", "wait", "threading.Event.wait", ALL_PYTHONS, having="signaled"),
    Place("/threading.py", "_wait", "threading.Barrier.wait", ALL_PYTHONS),
    Place("/threading.py", "acquire", "threading.Semaphore.acquire", ALL_PYTHONS, having="rc"),
    Place("/queue.py", "get", "queue.Queue.get", ALL_PYTHONS),
    Place("/queue.py", "put", "queue.Queue.put", ALL_PYTHONS),
    Place("/queue.py", "join", "queue.Queue.join", ALL_PYTHONS),
    Place("/asyncio/base_events.py", "_run_once", EVENT_LOOP, ALL_PYTHONS),
    Place("/socketserver.py", "serve_forever", IDLE, ALL_PYTHONS),
    Place("/subprocess.py", "communicate", "subprocess.Popen.communicate", ALL_PYTHONS),
    Place("/multiprocessing/connection.py", "wait", "multiprocessing.connection.wait", ALL_PYTHONS),
    Place("/multiprocessing/queues.py", "get", "multiprocessing.Queue.get", ALL_PYTHONS),
    Place("/multiprocessing/queues.py", "put", "multiprocessing.Queue.put", ALL_PYTHONS),
    Place("/multiprocessing/synchronize.py", "wait", "multiprocessing.Event.wait", ALL_PYTHONS),
    Place("/multiprocessing/managers.py", "_callmethod", "reply of a multiprocessing manager", ALL_PYTHONS),
    Place("/multiprocessing/pool.py", "get", "multiprocessing.Pool result", ALL_PYTHONS),
    Place("/multiprocessing/pool.py", "next", "multiprocessing.Pool result", ALL_PYTHONS),
    Place("/multiprocessing/process.py", "join", "multiprocessing.Process.join", ALL_PYTHONS),
    Place("/concurrent/futures/_base.py", "result", "Future.result", ALL_PYTHONS),
    Place("/concurrent/futures/_base.py", "exception", "Future.exception", ALL_PYTHONS),
    Place("/concurrent/futures/_base.py", "wait", "concurrent.futures.wait", ALL_PYTHONS),
    Place("/concurrent/futures/_base.py", "as_completed", "concurrent.futures.as_completed", ALL_PYTHONS),
    Place("/concurrent/futures/thread.py", "shutdown", "ThreadPoolExecutor.shutdown", ALL_PYTHONS),
    Place("/concurrent/futures/process.py", "shutdown", "ProcessPoolExecutor.shutdown", ALL_PYTHONS),
    Place("/concurrent/futures/process.py", "wait_result_broken_or_wakeup", IDLE, ALL_PYTHONS),
    Place("/ray/_private/gc_collect_manager.py", "run", IDLE, "Ray 2.60"),
    Place("/ray/util/queue.py", "get", "Queue.get of ray.util.queue", BOTH_RAYS),
    Place("/ray/util/queue.py", "put", "Queue.put of ray.util.queue", BOTH_RAYS),
    Place("/ray/util/actor_pool.py", "get_next", "ActorPool.get_next", BOTH_RAYS),
    Place("/ray/util/actor_pool.py", "get_next_unordered", "ActorPool.get_next_unordered", BOTH_RAYS),
    Place("/ray/util/multiprocessing/pool.py", "get", "ray.util.multiprocessing.Pool result", BOTH_RAYS),
    Place("/ray/util/multiprocessing/pool.py", "next", "ray.util.multiprocessing.Pool result", BOTH_RAYS),
    Place("/ray/util/multiprocessing/pool.py", "join", "ray.util.multiprocessing.Pool.join", BOTH_RAYS),
    Place("/ray/util/placement_group.py", "wait", "PlacementGroup.wait", BOTH_RAYS),
    *TORCH_CALLS,
    *RAY_COLLECTIVES,
    WAIT_TENSOR,
    Place("/ray/experimental/compiled_dag_ref.py", "get", "CompiledDAGRef.get", BOTH_RAYS),
    Place("/ray/serve/handle.py", "result", "DeploymentResponse.result", BOTH_RAYS),
    Place("/ray/serve/handle.py", "__next__", "next of a DeploymentResponseGenerator", BOTH_RAYS),
    Place(DATA, "process_completed_tasks", "Ray Data's executor", BOTH_RAYS),
    Place(DATA, "get_output_blocking", "Ray Data's next output", BOTH_RAYS),
    Place("/ray/data/_internal/iterator/stream_split_iterator.py", "gen_blocks", "Ray Data's next block", BOTH_RAYS),
    Place("/ray/data/_internal/execution/streaming_executor.py", "shutdown", "end of Ray Data's executor", BOTH_RAYS),
    Place("/ray/train/_internal/session.py", "report", "ray.train.report", BOTH_RAYS, is_meeting=True),
    Place("/ray/train/v2/_internal/execution/context.py", "report", "ray.train.report", BOTH_RAYS, is_meeting=True),
    Place(TRAIN, "barrier", "barrier of ray.train.collective", "Ray 2.60"),
    Place(TRAIN, "broadcast_from_rank_zero", "broadcast of ray.train.collective", "Ray 2.60"),
)


@dataclass(frozen=True, slots=True)
class Poll:
    """A function that waits by sleeping, again and again, until its ``self`` has changed."""

    place: Place
    every_s: float


SPLIT = "/ray/data/_internal/iterator/stream_split_iterator.py"
SERVE_CLIENT = "/ray/serve/_private/client.py"
POLLS = (
    Poll(Place(DATA, "get_output_blocking", "Ray Data's next output", BOTH_RAYS), 0.01),
    Poll(Place(SPLIT, "_barrier", "the other consumers of a dataset's streaming_split", BOTH_RAYS), 0.1),
    Poll(Place(SERVE_CLIENT, "_wait_for_application_running", "start of a Serve application", BOTH_RAYS), 1.0),
)

CHANNELS = (
    Place(CHANNEL, "read", "read of a compiled graph's channel", BOTH_RAYS),
    Place(CHANNEL, "release_buffer", "read of a compiled graph's channel", BOTH_RAYS),
)
"""Callers of ``ray.get`` on a ref that is written repeatedly: that it has a value does not end the wait."""

FREE_REPLICA = "Serve's wait for a free replica"
SERVE = "/ray/serve/_private/"
AWAITS = (
    Place(f"{SERVE}request_router/request_router.py", "_choose_replica_for_request", FREE_REPLICA, "Ray 2.60"),
    Place(f"{SERVE}replica_scheduler/pow_2_scheduler.py", "choose_replica_for_request", FREE_REPLICA, "2.46, not run"),
)
"""Coroutines that name the wait for a future whose source is unknown."""


def _by_function(*tables: Sequence[Place]) -> dict[str, list[Place]]:
    """The rows of these tables by function, the most specific file first: ``/ray/util/queue.py``, ``/queue.py``."""
    found: dict[str, list[Place]] = {}
    for place in sorted((place for table in tables for place in table), key=lambda one: -len(one.file)):
        found.setdefault(place.function, []).append(place)
    return found


IN_LEAF, IN_CALLERS = _by_function(WAITS), _by_function(CHANNELS, NAMES)
IN_CHANNEL, IN_COROUTINE = _by_function(CHANNELS), _by_function(AWAITS)
"""The tables for :func:`place_of`, by the place of a frame in its stack."""


def place_of(frame: Frame, table: dict[str, list[Place]]) -> Place | None:
    """The row of a table that this frame is in."""
    position = frame.position
    for place in table.get(position.function, ()):
        if position.file.endswith(place.file) and (place.having is None or frame.has(place.having)):
            return place
    return None


def place_of_leaf(frames: Sequence[Frame]) -> Place | None:
    """The row of the innermost frame, or of its caller if the frame is an operator of torch."""
    place = place_of(frames[0], IN_LEAF)
    if place is None and is_in(frames[0], *TORCH_OPERATOR) and len(frames) > 1:
        return place_of(frames[1], IN_LEAF)
    return place


def poll_of(leaf: Frame) -> Poll | None:
    """The row of a thread that sleeps in this innermost frame, None where it does not wait by sleeping."""
    position = leaf.position
    for poll in POLLS:
        if position.function == poll.place.function and position.file.endswith(poll.place.file):
            return poll
    return None


def places_outward(frames: Sequence[Frame], is_user: Callable[[Frame], bool]) -> Iterator[tuple[int, Place]]:
    """Frames that name a wait, with their index from the leaf, up to the user's own code."""
    for index, frame in enumerate(frames):
        if is_user(frame):
            return
        place = place_of(frame, IN_CALLERS if index else IN_LEAF)
        if place:
            yield index, place
