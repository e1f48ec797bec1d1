"""What may cut waits short: members that fail, code that cancels or kills, starting actors, and signals."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from dstack.analysis.diagnose import diagnose
from dstack.analysis.naming.descriptions import describe
from dstack.model.diagnosis import Diagnosis
from dstack.observed.calls import Timer
from dstack.observed.processes import Process, StopCall, Thread
from tests.unit.scenes import Scene, SceneProcess


@dataclass
class Ring:
    """Two actors that call each other, the first one on behalf of the driver, which waits for nothing."""

    scene: Scene = field(default_factory=Scene)

    def __post_init__(self) -> None:
        self.driver = self.scene.driver()
        self.left, self.right = self.scene.actor("Left"), self.scene.actor("Right")
        self.call = self.scene.call(self.left, "first", by=self.driver)
        self.left.runs(self.call)
        self.right.runs(self.scene.call(self.right, "second", by=self.left))
        self.left.gets(self.right.running[0])
        self.right.gets(self.scene.call(self.left, "third", by=self.right))

    def diagnose(self) -> Diagnosis:
        return self.scene.sample().second_sample().diagnose()


def goes_on(process: SceneProcess, *, stops: str = "") -> None:
    """Has its thread run code that may do anything, and makes this call next if its source shows one."""
    process.computes()
    process.threads[0].only_polls = False
    process.threads[0].stops = StopCall(name=stops, line=9) if stops else None


def verdict(diagnosis: Diagnosis) -> tuple[str, bool]:
    first = diagnosis.findings[0]
    return diagnosis.verdict, first.confirmed


def test_a_driver_that_only_sleeps_leaves_a_deadlock_confirmed() -> None:
    ring = Ring()
    ring.driver.computes().keeps(ring.call)

    assert verdict(ring.diagnose()) == ("deadlock", True)


@pytest.mark.parametrize("holds", ["ref", "handle"])
def test_a_holder_that_goes_on_makes_a_deadlock_suspected_and_is_named(holds: str) -> None:
    ring = Ring()
    ring.driver.keeps(ring.call) if holds == "ref" else ring.driver.holds(ring.right)
    goes_on(ring.driver)

    diagnosis = ring.diagnose()

    assert verdict(diagnosis) == ("deadlock", False)
    assert diagnosis.findings[0].assumed[0].startswith("nothing cancels or kills one of them, as driver train.py")


@pytest.mark.parametrize(("holds", "stops"), [("ref", "ray.cancel"), ("handle", "ray.kill")])
def test_a_holder_that_stops_a_member_by_its_source_is_waited_for(holds: str, stops: str) -> None:
    ring = Ring()
    ring.driver.keeps(ring.call) if holds == "ref" else ring.driver.holds(ring.right)
    goes_on(ring.driver, stops=stops)

    diagnosis = ring.diagnose()

    assert diagnosis.verdict == "running"
    assert ring.driver.key in [blocker.vertex for blocker in diagnosis.findings[0].final_blockers]


def test_a_process_that_holds_nothing_of_a_deadlock_cannot_stop_it() -> None:
    ring = Ring()
    goes_on(ring.driver.computes(), stops="ray.cancel")
    ring.driver.refs.clear()

    assert ring.diagnose().verdict == "deadlock"


def test_code_that_would_stop_a_member_but_is_stuck_itself_does_not_count() -> None:
    ring = Ring()
    ring.driver.keeps(ring.call).gets(ring.call)
    ring.driver.threads[0].stops = StopCall(name="ray.cancel", line=9)

    assert verdict(ring.diagnose()) == ("deadlock", True)


def test_an_actor_that_starts_may_be_a_supervisor() -> None:
    ring = Ring()
    ring.driver.holds(ring.right)
    ring.scene.pending_actor("Supervisor", by=ring.driver)

    assert ring.diagnose().verdict == "running"


def test_an_actor_that_waits_for_resources_is_no_supervisor_yet() -> None:
    ring = Ring()
    ring.driver.holds(ring.right)
    _, creation = ring.scene.pending_actor("Supervisor", by=ring.driver, GPU=1.0)
    creation.becomes(state="PENDING_NODE_ASSIGNMENT")

    assert "deadlock" in {finding.kind for finding in ring.diagnose().findings}


@pytest.mark.parametrize(("may_fail", "expected"), [(True, ("running", False)), (False, ("deadlock", False))])
def test_a_member_that_goes_on_ends_a_get_of_several_unless_its_source_shows_no_failure(
    may_fail: bool, expected: tuple[str, bool]
) -> None:
    ring = Ring()
    slow = ring.scene.actor("Slow")
    slow.runs(ring.scene.call(slow, "work", by=ring.left)).computes()
    slow.threads[0].may_fail = may_fail
    ring.left.gets(ring.right.running[0], slow.running[0])

    diagnosis = ring.diagnose()

    assert verdict(diagnosis) == expected
    if not may_fail:
        assert diagnosis.findings[0].assumed == ("Slow.work does not fail: its source shows no exception",)


@pytest.mark.parametrize(("signals", "is_stuck"), [((), True), (("SIGUSR2",), True), (("SIGALRM",), False)])
def test_the_handler_of_an_alarm_may_end_any_wait_of_the_main_thread(signals: tuple[str, ...], is_stuck: bool) -> None:
    ring = Ring()
    ring.right.known["handled_signals"] = signals

    assert ring.diagnose().is_stuck is is_stuck


def test_a_timer_of_an_event_loop_stops_no_actor_of_which_its_process_has_no_handle() -> None:
    ring = Ring()
    ring.driver.known["timers"] = (Timer(name="ray.kill", left_s=9.0, stops=True),)

    assert ring.diagnose().verdict == "deadlock"


def test_a_timer_of_an_event_loop_stops_the_actor_whose_handle_its_process_holds() -> None:
    ring = Ring()
    ring.driver.known["timers"] = (Timer(name="ray.kill", left_s=9.0, stops=True),)
    ring.driver.holds(ring.right)

    diagnosis = ring.diagnose()

    (blocker,) = diagnosis.findings[0].final_blockers
    assert diagnosis.verdict == "running"
    assert "timer of driver train.py that calls ray.kill in 9.0 s" in describe(diagnosis.vertices[blocker.vertex])


@pytest.mark.parametrize(("of_member", "is_stuck"), [(True, False), (False, True)])
@pytest.mark.parametrize("by", ["source", "timer"])
def test_what_ends_its_own_process_ends_the_waits_of_that(of_member: bool, is_stuck: bool, by: str) -> None:
    ring = Ring()
    process = ring.left if of_member else ring.scene.actor("Other")
    if by == "timer":
        process.known["timers"] = (Timer(name="os._exit", stops=True, ends_process=True),)
    else:
        thread = process.thread("watchdog", role="user").computes()
        thread.only_polls = False
        thread.stops = StopCall(name="os._exit", line=9, ends_process=True)

    assert ring.diagnose().is_stuck is is_stuck


@pytest.mark.parametrize("is_there", [True, False])
def test_another_program_below_a_member_may_kill_it(is_there: bool) -> None:
    ring = Ring()
    empty = len(Ring().scene.sample().snapshot().stacks)
    program = Thread(os_thread_id=77, name="sh", stack=empty, role="user")
    child = Process(pid=77, started_at=1.7e9, parent_pid=ring.left.worker.pid, name="sh", threads=(program,))
    ring.left.known["children"] = (child,) if is_there else ()
    snapshot = ring.scene.sample().sample().snapshot()

    diagnosis = diagnose(replace(snapshot, stacks=(*snapshot.stacks, ())))

    assert verdict(diagnosis) == ("deadlock", not is_there)
