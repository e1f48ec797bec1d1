"""Ranks of Train's workers and splits of Data, read from this process's memory."""

from __future__ import annotations

import os
import struct
import sys
import threading
import time
import types
from collections import OrderedDict, deque
from collections.abc import Generator, Iterator
from enum import Enum
from typing import Any

import pytest
from ray import ObjectRef

from dstack.analysis.naming.library_states import library_state_in_words
from dstack.libraries.data.reading import completed, operators
from dstack.libraries.train.reading import CONTEXT, awaited, awaited_validation, rank_in_train, run_state, trials
from dstack.observed.calls import Call, GroupCall, ProcessGroup, ProcessObject
from dstack.observed.processes import LibraryState
from dstack.probes.node.cpython.memory import ProcessMemory, open_memory
from dstack.probes.node.cpython.memory_frames import MemoryFrame
from dstack.probes.node.library_states import Reader
from tests.unit.support.own_process import own_frames, own_objects, own_process

TRAIN = "/site-packages/ray/train/v2/_internal"
DATA = "/site-packages/ray/data/_internal/iterator/stream_split_iterator.py"
ACTOR = "ab" * 16
RANKS = """
def broadcast_from_rank_zero(self, world_rank, world_size, caller_method_name):
    yield
"""
WAITS = """
def wait_with_logging():
    yield
"""
BARRIER = """
def _barrier(self, split_idx):
    yield
"""
ActorID: Any = type("ray._raylet.ActorID", (), {"__slots__": ("a_table", "b_hash", "c_first", "d_second")})
"""An id like Ray's, with 16 bytes at offset 32."""


class Attributes:
    def __init__(self, **values: object) -> None:
        self.__dict__.update(values)


class ActorHandle(Attributes):
    """A class with the name of Ray's."""


class TrainContext(Attributes):
    """A class with the name of Train's."""


@pytest.fixture
def memory() -> Iterator[ProcessMemory]:
    with open_memory(os.getpid()) as memory:
        yield memory


def suspended(source: str, file: str, *arguments: object) -> Generator[None]:
    """A started generator of the only function in this source."""
    names: dict[str, Any] = {}
    exec(compile(source, file, "exec"), names)
    generator: Generator[None] = next(one for name, one in names.items() if name != "__builtins__")(*arguments)
    next(generator)
    return generator


def frames_of(memory: ProcessMemory, *generators: Generator[None]) -> list[MemoryFrame]:
    frames = own_frames(memory)
    found = [frames.suspended(id(one)) for one in generators]
    assert None not in found
    return [frame for frame in found if frame is not None]


def arrival(memory: ProcessMemory, *, rank: int = 1, size: int = 4, **actor: object) -> Call | None:
    """The wait of this rank in the synchronization actor with these attributes."""
    own = Attributes(**{"_required_ranks": None, "_timeout_s": None, "_sync_start_times": [None] * size, **actor})
    file = f"{TRAIN}/execution/checkpoint/sync_actor.py"
    caller = "ray.train.report"
    both = suspended(WAITS, f"{TRAIN}/util.py"), suspended(RANKS, file, own, rank, size, caller)
    return awaited(own_objects(memory), frames_of(memory, *both), ACTOR)


def test_a_rank_waits_for_the_others_of_its_worker_group(memory: ProcessMemory) -> None:
    call = arrival(memory)

    assert call is not None
    assert (call.site, call.timeout_s) == ("ray.train.report", None)
    group = ProcessGroup(library="ray.train", world=ACTOR, name="workers", rank=1, ranks=(0, 1, 2, 3))
    assert call.need == GroupCall(operation="ray.train.report", group=group)


def test_a_group_that_may_continue_without_a_rank_is_unknown(memory: ProcessMemory) -> None:
    assert arrival(memory, _required_ranks={0, 1}) is None


def test_a_rank_that_enters_or_leaves_does_not_wait(memory: ProcessMemory) -> None:
    own = Attributes(_required_ranks=None)
    entering = suspended(RANKS, f"{TRAIN}/execution/checkpoint/sync_actor.py", own, 0, 2, "ray.train.report")
    assert awaited(own_objects(memory), frames_of(memory, entering), ACTOR) is None


def test_the_timeout_of_train_is_read(memory: ProcessMemory) -> None:
    began = time.monotonic() - 10
    call = arrival(memory, rank=0, size=2, _timeout_s=60.0, _sync_start_times=[began, None])

    assert call is not None
    assert isinstance(call.need, GroupCall)
    fails_at = call.need.fails_at
    assert fails_at is not None
    assert fails_at == pytest.approx(time.time() + 50, abs=5)


CHECKPOINTS = """
async def get_all_reported_checkpoints(self, current_report_index, consistency_mode, timeout_s):
    await pause()
"""


@types.coroutine
def pause() -> Generator[None]:
    yield


class Mode(Enum):
    """The modes in which Train returns checkpoints."""

    COMMITTED = "COMMITTED"
    VALIDATED = "VALIDATED"


class ValidationManager(Attributes):
    """A class with the name of Train's."""


def validation(
    memory: ProcessMemory, *refs: object, mode: str = "VALIDATED", timeout_s: float | None = None, reported: int = 1
) -> Call | None:
    """The wait for the checkpoints of the first report, in a controller that validates by the tasks of these refs."""
    pending = OrderedDict((ref, Attributes(timeout_s=timeout_s)) for ref in refs)
    callbacks = [Attributes(), ValidationManager(_pending_validations=pending)]
    places = (
        ("checkpoint/checkpoint_manager.py", Attributes(_current_report_index=reported)),
        ("controller/controller.py", Attributes(_controller_callbacks=callbacks)),
    )
    waits: list[Any] = [suspended(WAITS, f"{TRAIN}/util.py")]
    for file, own in places:
        names: dict[str, Any] = {"pause": pause}
        exec(compile(CHECKPOINTS, f"{TRAIN}/execution/{file}", "exec"), names)
        waits.append(names["get_all_reported_checkpoints"](own, 1, Mode[mode], None))
        waits[-1].send(None)
    return awaited_validation(own_objects(memory), frames_of(memory, *waits), ACTOR)


def test_a_rank_waits_for_the_tasks_that_validate_its_checkpoints(memory: ProcessMemory) -> None:
    refs = [ObjectRef(os.urandom(28), skip_adding_local_ref=True) for _ in range(2)]

    call = validation(memory, *refs)

    assert call is not None
    assert (call.site, call.timeout_s) == ("ray.train.validation", None)
    assert call.refs == tuple(ref.hex() for ref in refs)
    timed = validation(memory, refs[0], timeout_s=60.0)
    assert timed is not None
    assert timed.timeout_s == 60.0


@pytest.mark.parametrize("known", [{"mode": "COMMITTED"}, {"reported": 0}])
def test_a_rank_may_wait_for_more_than_validation(memory: ProcessMemory, known: dict[str, Any]) -> None:
    assert validation(memory, ObjectRef(os.urandom(28), skip_adding_local_ref=True), **known) is None
    assert validation(memory) is None


@pytest.fixture
def train_worker(monkeypatch: pytest.MonkeyPatch) -> Attributes:
    """The execution context of a worker of rank 2 of 3, in a module with Train's name."""
    identity = ActorID()
    identity.c_first, identity.d_second = object(), object()
    handle = ActorHandle(_ray_actor_id=identity)
    execution = Attributes(synchronization_actor=handle, training_thread_runner=Attributes(_thread=None, _exc=None))
    places = Attributes(world_rank=2, world_size=3, local_rank=0)
    module: Any = types.ModuleType(CONTEXT[0])
    module._train_context = TrainContext(distributed_context=places, execution_context=execution)
    monkeypatch.setitem(sys.modules, CONTEXT[0], module)
    return execution


def test_a_train_worker_has_its_rank(memory: ProcessMemory, train_worker: Any) -> None:
    identity = train_worker.synchronization_actor._ray_actor_id
    world = struct.pack("<QQ", id(identity.c_first), id(identity.d_second)).hex()

    found = rank_in_train(own_process(memory))

    assert found is not None
    assert found.local_rank == 0
    assert found.group == ProcessGroup(library="ray.train", world=world, name="workers", rank=2, ranks=(0, 1, 2))


def test_a_returned_training_function_has_left_its_group(memory: ProcessMemory, train_worker: Any) -> None:
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    train_worker.training_thread_runner._thread = thread
    found = rank_in_train(own_process(memory))
    assert found is not None
    assert found.group.has_left


def test_a_failed_training_function_has_not_left_its_group(memory: ProcessMemory, train_worker: Any) -> None:
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    train_worker.training_thread_runner._thread, train_worker.training_thread_runner._exc = thread, ValueError()
    found = rank_in_train(own_process(memory))
    assert found is not None
    assert not found.group.has_left


def test_a_running_training_function_has_not_left_its_group(memory: ProcessMemory, train_worker: Any) -> None:
    train_worker.training_thread_runner._thread = threading.current_thread()
    found = rank_in_train(own_process(memory))
    assert found is not None
    assert not found.group.has_left


def states(memory: ProcessMemory, reader: Reader, controller: object) -> list[LibraryState]:
    return list(reader(own_objects(memory), id(controller)))


class StateType(Enum):
    """Two of the states of Train's controller."""

    SCHEDULING = "SCHEDULING"
    RUNNING = "RUNNING"


def test_a_controller_of_train_asks_for_workers(memory: ProcessMemory) -> None:
    decision = Attributes(num_workers=2, resources_per_worker={"CPU": 1, "GPU": 0.5})
    kind = StateType.SCHEDULING
    validations = ValidationManager(_pending_validations=OrderedDict(), _training_report_queue=deque([1, 2]))
    state = Attributes(_state_type=kind, scaling_decision=decision)
    controller = Attributes(_state=state, _controller_callbacks=[validations])

    (found,) = states(memory, run_state, controller)

    assert found == LibraryState(
        library="Train",
        state="SCHEDULING",
        counts={"workers": 2, "queued validations": 2},
        resources={"CPU": 1.0, "GPU": 0.5},
    )
    assert library_state_in_words(found).endswith("is SCHEDULING: it asks for 2 workers with 1 CPU and 0.5 GPU each")


def test_a_controller_of_train_that_runs_asks_for_nothing(memory: ProcessMemory) -> None:
    kind = StateType.RUNNING
    (found,) = states(memory, run_state, Attributes(_state=Attributes(_state_type=kind), _controller_callbacks=[]))

    assert library_state_in_words(found) == "Train's controller is RUNNING"


class ExecutionResources:
    """Amounts in slots, as in Data."""

    __slots__ = ("_cpu", "_gpu", "_object_store_memory")

    def __init__(self, cpu: float, memory: float) -> None:
        self._cpu, self._gpu, self._object_store_memory = cpu, None, memory


def queue_of(blocks: int) -> Attributes:
    return Attributes(_queues=[Attributes(_inner=Attributes(_num_blocks=blocks))])


def test_an_operator_of_data_that_a_policy_holds_back(memory: ProcessMemory) -> None:
    def operator(name: str, policy: str | None) -> Attributes:
        return Attributes(
            _name=name,
            _metrics=Attributes(num_tasks_running=3),
            _in_task_submission_backpressure=False,
            _in_task_output_backpressure=policy is not None,
            _task_output_backpressure_policy=policy,
        )

    reads, maps = operator("ReadRange", None), operator("Map(f)", "DownstreamCapacity")
    topology = {one: Attributes(input_queues=[queue_of(5)], output_queue=queue_of(7)) for one in (reads, maps)}
    budgets = {maps: ExecutionResources(1.0, 0.0)}
    manager = Attributes(
        _op_resource_allocator=Attributes(_op_budgets=budgets), _op_usages={maps: ExecutionResources(2.0, 100.0)}
    )

    found = states(memory, operators, Attributes(_topology=topology, _resource_manager=manager))

    expected = LibraryState(
        library="Data",
        name="Map(f)",
        state="DownstreamCapacity",
        holds_back="outputs",
        counts={"running tasks": 3, "queued blocks": 5, "output blocks": 7, "used bytes": 100},
        resources={"CPU": 1.0, "object_store_memory": 0.0},
    )
    assert found == [expected]


@pytest.mark.parametrize("limit", [{"_max_concurrent": 4}, {"searcher": Attributes(max_concurrent=4)}, {}])
def test_the_trials_of_tune_and_their_limit(memory: ProcessMemory, limit: dict[str, Any]) -> None:
    controller = Attributes(_search_alg=Attributes(**limit), _running_trials={1, 2}, _pending_trials=set())

    (found,) = states(memory, trials, controller)

    assert found.counts == {"running trials": 2, **({"most trials": 4} if limit else {})}


def test_a_process_without_train_is_in_no_group(memory: ProcessMemory) -> None:
    assert rank_in_train(own_process(memory)) is None


def test_a_reader_waits_for_the_other_splits(memory: ProcessMemory) -> None:
    generator = suspended(BARRIER, DATA, Attributes(_n=3), 2)
    [frame] = frames_of(memory, generator)
    call = Call(site="ray.data.streaming_split", frame=0, need=ProcessObject(), timeout_s=0.1)

    found = completed(own_objects(memory), [frame], call, ACTOR)

    assert found is not None
    assert (found.site, found.timeout_s) == ("ray.data.streaming_split", None)
    group = ProcessGroup(library="ray.data", world=ACTOR, name="", rank=2, ranks=(0, 1, 2))
    assert found.need == GroupCall(operation="start_epoch", group=group)


@pytest.mark.parametrize(("count", "split"), [(2, 2), (0, 0), (None, 0), ("3", 0)])
def test_malformed_splits_are_rejected(memory: ProcessMemory, count: object, split: int) -> None:
    generator = suspended(BARRIER, DATA, Attributes(_n=count), split)
    [frame] = frames_of(memory, generator)
    call = Call(site="ray.data.streaming_split", frame=0, need=ProcessObject(), timeout_s=0.1)
    assert completed(own_objects(memory), [frame], call, ACTOR) == call
