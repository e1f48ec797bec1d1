"""The dependencies of a wait in a channel of a compiled graph, by the progress of its writer and readers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dstack.analysis.graph.builder import GraphBuilder as WaitGraph
from dstack.analysis.graph.executions import add_executions
from dstack.analysis.graph.users import Users
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming.descriptions import describe, in_words
from dstack.libraries.compiled_graphs import FUTURE, GET
from dstack.libraries.compiled_graphs.waits import DROPPED, add_channel_waits
from dstack.model.diagnosis import Diagnosis, Wait
from dstack.model.vertex_keys import UnknownKey
from dstack.observed.calls import Call as BlockedCall
from dstack.observed.calls import ChannelCall
from dstack.observed.processes import Frame, GraphChannel, GraphStage
from tests.unit.scenes import Call, Scene, SceneProcess, groups_of

CHANNEL_READ = Frame(function="read", file="/lib/ray/experimental/channel/common.py", line=3, origin="ray")


def channel(writer: str, reader: str, buffers: int = 1) -> GraphChannel:
    return GraphChannel(writer=writer, readers=(reader,), refs=(f"{writer or 'driver'}-{reader}",), buffers=buffers)


def waits(
    proc: SceneProcess, *, is_write: bool = False, count: int = 0, pending: tuple[int, ...] = (0,), **known: float
) -> None:
    """Makes the thread of the loop, or the driver's thread, wait at its end of a channel."""
    end = ChannelCall(
        end="writer" if is_write else "reader",
        is_write=is_write,
        count=count,
        pending=pending,
        fails_after_s=known.get("fails_after_s"),
    )
    call = BlockedCall(site=GET.id, frame=0, need=end, timeout_s=known.get("timeout_s"))
    thread = proc.threads[0]
    thread.call = call
    thread.leaf = None if proc.worker.is_driver else CHANNEL_READ


def is_at(proc: SceneProcess, reads: int, writes: int) -> None:
    """Sets the progress of the process's only stage."""
    proc.graph_stages[-1] = replace(proc.graph_stages[-1], reads=reads, writes=writes)


@dataclass
class GraphBuilder:
    """A driver that executes a graph of two stages, ``Load.run`` and ``Train.run``."""

    scene: Scene
    driver: SceneProcess
    load: SceneProcess
    train: SceneProcess
    loops: Sequence[Call]

    def diagnose(self) -> Diagnosis:
        return self.scene.sample().sample().diagnose()


def graph(buffers: int = 1) -> GraphBuilder:
    """Load has the input of one execution; the driver waits for the result, and Train for its input."""
    scene = Scene()
    driver, load, train = scene.driver(), scene.actor("Load"), scene.actor("Train")
    loops = [scene.call(actor, "__ray_call__", by=driver) for actor in (load, train)]
    load.runs(loops[0]).computes()
    train.runs(loops[1])
    first = channel("", load.actor_id, buffers)
    second = channel(load.actor_id, train.actor_id, buffers)
    proxy = scene.actor("DAGDriverProxyActor", owner_id=driver.worker_id)
    last = channel(train.actor_id, proxy.actor_id, buffers)
    load.graph_stages = [stage(load, "run", first, second)]
    train.graph_stages = [stage(train, "run", second, last)]
    driver.graph_stages = [stage(driver, "", last, first)]
    is_at(driver, reads=0, writes=1)
    is_at(load, reads=1, writes=0)
    waits(driver)
    waits(train)
    return GraphBuilder(scene, driver, load, train, loops)


def stage(proc: SceneProcess, method: str, source: GraphChannel, sink: GraphChannel) -> GraphStage:
    return GraphStage(
        method=method,
        os_thread_id=proc.threads[0].tid if method else 0,
        is_current=bool(method),
        reader="reader",
        writer="writer",
        inputs=(source,),
        outputs=(sink,),
    )


def wait_at(it: GraphBuilder, proc: SceneProcess) -> Wait:
    """The wait of a stage, which needs no waiter."""
    snapshot = it.scene.snapshot()
    vertices = WaitGraph(SampleIndex(snapshot, snapshot.samples[0]))
    for worker_id in vertices.index.worker_samples:
        add_executions(vertices, worker_id)
    add_channel_waits(vertices, Users(vertices))
    wait = vertices.vertices[proc.key].wait
    assert wait is not None
    return wait


# Reads


def test_a_read_waits_for_the_stage_that_writes() -> None:
    it = graph()

    wait = it.scene.wait_of(it.driver)

    assert (wait.kind, groups_of(wait)) == ("channel read", [(1, [it.train.key])])
    assert groups_of(it.scene.wait_of(it.train)) == [(1, [it.load.key])]


def test_a_stage_that_computes_is_a_final_blocker() -> None:
    diagnosis = (it := graph()).diagnose()

    (finding,) = diagnosis.findings
    assert (diagnosis.verdict, finding.final_blockers[0].vertex) == ("running", it.load.key)
    assert describe(diagnosis.vertices[it.load.key]) == "stage Load.run"


def test_a_stage_that_waits_for_a_task_after_the_result_is_deadlocked() -> None:
    it = graph()
    pipeline = it.scene.actor("Pipeline")
    infer, factor = it.scene.call(pipeline, "infer", by=it.driver), it.scene.call(pipeline, "factor", by=it.load)
    pipeline.runs(infer)
    pipeline.graph_stages, it.driver.graph_stages = it.driver.graph_stages, []
    waits(pipeline)
    it.driver.gets(infer)
    it.load.gets(factor)

    diagnosis = it.diagnose()

    (finding,) = diagnosis.findings
    assert (diagnosis.verdict, finding.confirmed) == ("deadlock", True)
    assert set(finding.members) == {pipeline.key, it.train.key, it.load.key, factor.key}
    assert finding.blocked_behind == (it.driver.key,)


def test_a_value_that_is_written_only_has_to_be_read() -> None:
    it = graph()
    is_at(it.load, reads=1, writes=1)
    waits(it.load, count=1)

    (target,) = it.scene.wait_of(it.train).groups[0].targets

    assert isinstance(target.vertex, UnknownKey)
    assert target.vertex.is_available_value
    assert not it.diagnose().is_stuck


def test_all_missing_inputs_are_needed() -> None:
    it = graph()
    other = it.scene.actor("Other")
    side = channel(other.actor_id, it.train.actor_id)
    other.runs(it.scene.call(other, "__ray_call__", by=it.driver)).computes()
    other.graph_stages = [stage(other, "run", channel("", other.actor_id), side)]
    it.train.graph_stages = [replace(it.train.graph_stages[0], inputs=(*it.train.graph_stages[0].inputs, side))]
    waits(it.train, pending=(0, 1))

    assert groups_of(it.scene.wait_of(it.train)) == [(1, [it.load.key]), (1, [other.key])]

    waits(it.train, pending=(1,))
    it.scene.samples.clear()
    assert groups_of(it.scene.wait_of(it.train)) == [(1, [other.key])]


def test_an_idle_graph_is_no_finding() -> None:
    it = graph()
    for proc in (it.driver, it.load, it.train):
        is_at(proc, reads=1, writes=1)
    waits(it.load, count=1)
    waits(it.train, count=1)
    it.driver.computes()
    monitor = it.driver.thread("CompiledGraphMonitorThread", "ray")
    monitor.leaf = CHANNEL_READ
    monitor.gets(*it.loops)

    diagnosis = it.diagnose()

    assert diagnosis.findings == ()
    assert [wait.name for wait in diagnosis.outside if wait.does != "runs"] == []


def test_the_loop_of_a_second_graph_is_queued_behind_the_first_loop() -> None:
    it = graph()
    for proc in (it.driver, it.load, it.train):
        is_at(proc, reads=1, writes=1)
    waits(it.load, count=1)
    again = it.scene.call(it.load, "__ray_call__", by=it.driver)
    source = replace(channel("", it.load.actor_id), refs=("input of the second",))
    sink = channel(it.load.actor_id, "d" * 32)
    it.driver.graph_stages.append(replace(stage(it.driver, "", sink, source), reader="second"))
    end = ChannelCall(end="second", is_write=False, count=0, pending=(0,))
    it.driver.threads[0].call = BlockedCall(site=GET.id, frame=0, need=end)

    diagnosis = it.diagnose()

    (finding,) = diagnosis.findings
    assert (diagnosis.verdict, set(finding.members)) == ("deadlock", {it.driver.key, again.key, it.load.key})
    assert "teardown()" in str(finding.advice)


def test_a_coroutine_awaits_the_stage_that_gives_its_result() -> None:
    it = graph()
    end = ChannelCall(end="reader", is_write=False, count=2, pending=(0,))
    coroutine = it.driver.computes().coroutine()
    coroutine.call = BlockedCall(site=FUTURE.id, frame=0, need=end)
    is_at(it.train, reads=0, writes=2)

    assert groups_of(it.scene.wait_of(coroutine)) == [(1, [it.train.key])]

    is_at(it.train, reads=0, writes=3)  # the third result is there
    it.scene.samples.clear()
    (target,) = it.scene.wait_of(coroutine).groups[0].targets
    assert isinstance(target.vertex, UnknownKey)


# Writes


def test_a_write_waits_for_the_reader_of_the_last_value() -> None:
    it = graph()
    is_at(it.load, reads=2, writes=1)
    waits(it.load, is_write=True, count=1)
    it.train.computes()

    wait = wait_at(it, it.load)

    assert (wait.kind, groups_of(wait)) == ("channel write", [(1, [it.train.key])])


def test_a_write_does_not_wait_for_a_reader_within_the_buffers() -> None:
    it = graph(buffers=2)
    is_at(it.load, reads=3, writes=2)
    is_at(it.train, reads=1, writes=1)
    waits(it.load, is_write=True, count=2)

    assert wait_at(it, it.load).kind == "kept value"


def kept() -> GraphBuilder:
    """Train waits for room, though the driver has read its last value, and waits for the next one."""
    it = graph()
    is_at(it.driver, reads=1, writes=2)
    is_at(it.load, reads=2, writes=2)
    is_at(it.train, reads=2, writes=1)
    waits(it.load, count=2)
    waits(it.train, is_write=True, count=1)
    waits(it.driver, count=1)
    return it


def test_a_driver_that_keeps_a_value_and_waits_for_the_next_is_in_a_suspected_deadlock() -> None:
    it = kept()

    diagnosis = it.diagnose()

    (finding,) = diagnosis.findings
    assert (diagnosis.verdict, finding.confirmed, finding.assumed) == ("deadlock", False, (in_words(DROPPED),))
    assert set(finding.members) == {it.driver.key, it.train.key}
    assert "Copy" in str(finding.advice)


def test_another_thread_of_the_driver_may_drop_a_value() -> None:
    it = kept()
    it.driver.thread("consumer", "user").computes()

    assert not it.diagnose().is_stuck


def test_a_channel_of_unknown_size_is_in_no_deadlock() -> None:
    it = kept()
    last = replace(it.train.graph_stages[0].outputs[0], buffers=0)
    it.train.graph_stages = [replace(it.train.graph_stages[0], outputs=(last,))]

    assert not it.diagnose().is_stuck


# Uncertain waits


def test_a_wait_that_differs_in_the_second_sample_is_no_deadlock() -> None:
    it = kept()
    it.scene.sample()
    waits(it.train, is_write=True, count=2)

    assert not it.scene.sample().diagnose().is_stuck


def test_a_stage_that_was_not_read_may_proceed() -> None:
    it = kept()
    it.train.graph_stages = []

    assert not it.diagnose().is_stuck


def test_an_unknown_channel_of_a_stage_is_left_out() -> None:
    it = kept()
    waits(it.train, is_write=True, count=1, pending=(7,))
    waits(it.driver, count=1, pending=(7,))

    assert not it.diagnose().is_stuck


def test_a_user_timeout_ends_a_wait_and_rays_timeout_is_an_error() -> None:
    it = kept()
    waits(it.driver, count=1, timeout_s=5.0)
    assert not it.diagnose().is_stuck

    it = kept()
    waits(it.driver, count=1, fails_after_s=10.0)
    diagnosis = it.diagnose()
    (finding,) = diagnosis.findings
    assert diagnosis.is_stuck
    assert any("(fails after 10 s)" in step.text for step in finding.explanation)
