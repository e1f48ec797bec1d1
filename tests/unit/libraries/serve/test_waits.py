"""Requests to Serve deployments, queued and ongoing: their dependencies, and the findings."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from dstack.analysis.naming.descriptions import describe
from dstack.call_sites import OTHER_LOOP
from dstack.model.diagnosis import Diagnosis
from dstack.model.snapshot import Actor
from dstack.model.vertex_keys import CoroutineKey, UnknownKey
from dstack.observed.calls import QueuedRequest, ServeRequest
from dstack.observed.processes import Frame
from tests.unit.scenes import Call, Scene, SceneCoroutine, SceneProcess

ORDER = ServeRequest(app="default", deployment="Shop", method="order")
IS_PAID = ServeRequest(app="default", deployment="Shop", method="is_paid")
PROXY = Frame(function="ProxyResponseGenerator._await_response", file="/ray/serve/proxy.py", line=165, origin="ray")
INITIALIZES = Frame(function="initialize_callable", file="/ray/serve/_private/replica.py", line=9, origin="ray")
COOK = ServeRequest(app="default", deployment="Kitchen", method="cook")


def replica(scene: Scene, request: ServeRequest, replica_id: str) -> SceneProcess:
    return scene.async_actor(
        f"ServeReplica:{request.app}:{request.deployment}",
        name=f"SERVE_REPLICA::{request.app}#{request.deployment}#{replica_id}",
    )


def request_to(scene: Scene, proc: SceneProcess, by: SceneProcess) -> Call:
    return scene.call(proc, "handle_request_with_rejection", by=by)


def executes(proc: SceneProcess, call: Call, request: ServeRequest) -> SceneCoroutine:
    """Makes a replica execute a request, in a coroutine of Serve that awaits this user coroutine."""
    passes_on = proc.begins(call).executes(request)
    passes_on.is_library = True
    method = proc.coroutine(call).executes(request)
    passes_on.awaits(method)
    return method


def queued(limits: Mapping[str, int], most_replicas: int | None = 1) -> QueuedRequest:
    return QueuedRequest(request=IS_PAID, replicas=dict(limits), most_replicas=most_replicas)


class Kitchens:
    """A driver's order, which waits for a kitchen, which waits until Shop.is_paid can begin."""

    def __init__(self, is_paid: QueuedRequest) -> None:
        self.scene = Scene()
        self.driver = self.scene.driver()
        self.shop, self.kitchen = replica(self.scene, ORDER, "s1"), replica(self.scene, COOK, "k1")
        ordered = request_to(self.scene, self.shop, by=self.driver)
        cooked = request_to(self.scene, self.kitchen, by=self.shop)
        self.driver.gets(ordered)
        self.order = executes(self.shop, ordered, ORDER).awaits(cooked)
        self.cook = executes(self.kitchen, cooked, COOK)
        self.router = self.kitchen.coroutine(cooked, is_library=True).is_queued(is_paid)
        self.cook.awaits(self.router)

    def diagnosis(self) -> Diagnosis:
        return self.scene.sample().sample().diagnose()


def test_a_request_that_is_queued_behind_its_waiter_is_a_deadlock() -> None:
    kitchens = Kitchens(queued({"s1": 1}))

    diagnosis = kitchens.diagnosis()

    finding = diagnosis.findings[0]
    assert (diagnosis.verdict, finding.confirmed, finding.assumed) == ("deadlock", True, ())
    assert {kitchens.order.key, kitchens.cook.key, kitchens.router.key} == set(finding.members)
    assert finding.blocked_behind == (kitchens.driver.key,)
    assert "Kitchen.cook" in finding.summary
    assert "Shop.order" in finding.summary
    assert "Raise max_ongoing_requests of Shop to 2 (now 1)" in str(finding.advice)
    assert not any("asyncio task" in step.text for step in finding.explanation)


def test_the_router_of_a_request_is_a_helper() -> None:
    kitchens = Kitchens(queued({"s1": 1}))

    finding = kitchens.diagnosis().findings[0]

    assert CoroutineKey(kitchens.shop.worker_id, "0x1") in finding.helpers
    assert CoroutineKey(kitchens.shop.worker_id, "0x1") not in finding.members


@pytest.mark.parametrize(
    "waiting", [queued({"s1": 2}), queued({"s1": 1}, 2), queued({"s1": 1}, None), queued({}), queued({}, 0)]
)
def test_a_request_that_may_begin_is_no_deadlock(waiting: QueuedRequest) -> None:
    """A replica has a free slot, another may start or is unknown to the router, or their number is unknown."""
    kitchens = Kitchens(waiting)

    assert kitchens.diagnosis().verdict == "running"


def test_another_replica_with_a_request_that_proceeds_ends_the_wait() -> None:
    kitchens = Kitchens(queued({"s1": 1, "s2": 1}, 2))
    second = replica(kitchens.scene, ORDER, "s2")
    executes(second, request_to(kitchens.scene, second, by=kitchens.driver), ORDER).sleeps()

    assert kitchens.diagnosis().verdict == "running"


def test_replicas_that_are_all_in_the_cycle_are_a_deadlock() -> None:
    kitchens = Kitchens(queued({"s1": 1, "s2": 1}, 2))
    second = replica(kitchens.scene, ORDER, "s2")
    cooked = request_to(kitchens.scene, kitchens.kitchen, by=second)
    executes(second, request_to(kitchens.scene, second, by=kitchens.driver), ORDER).awaits(cooked)
    router = kitchens.kitchen.coroutine(cooked, is_library=True).is_queued(queued({"s1": 1, "s2": 1}, 2))
    executes(kitchens.kitchen, cooked, COOK).awaits(router)

    assert kitchens.diagnosis().verdict == "deadlock"


def test_internal_calls_of_serve_use_no_slot() -> None:
    kitchens = Kitchens(queued({"s1": 2}))
    kitchens.shop.begins(kitchens.scene.call(kitchens.shop, "check_health", by=kitchens.driver)).sleeps()

    assert kitchens.diagnosis().verdict == "running"


def test_an_unobserved_replica_may_serve_the_request() -> None:
    kitchens = Kitchens(queued({"s1": 1}))
    kitchens.shop.is_unreachable = True

    diagnosis = kitchens.diagnosis()

    assert diagnosis.verdict != "deadlock"
    assert diagnosis.incomplete


def starting(scene: Scene, by: SceneProcess, **needs: float) -> Actor:
    actor, creation = scene.pending_actor("ServeReplica:default:Shop", by, **needs)
    creation.becomes(state="PENDING_NODE_ASSIGNMENT")
    return scene.becomes(actor, name="SERVE_REPLICA::default#Shop#s2")


def test_a_starting_replica_can_serve_a_queued_request() -> None:
    kitchens = Kitchens(queued({"s1": 1}, 2))
    controller = kitchens.scene.actor("ServeController", name="SERVE_CONTROLLER_ACTOR")
    actor = starting(kitchens.scene, controller)

    diagnosis = kitchens.diagnosis()

    assert diagnosis.verdict == "running"
    wait = diagnosis.vertices[kitchens.router.key].wait
    assert wait is not None
    targets = [target.vertex for target in wait.groups[0].targets]
    assert not any(isinstance(target, UnknownKey) for target in targets)
    assert any(actor.actor_id in str(target) for target in targets)


def test_a_further_replica_needs_resources_that_a_starting_one_lacks() -> None:
    kitchens = Kitchens(queued({"s1": 1}, 7))
    controller = kitchens.scene.actor("ServeController", name="SERVE_CONTROLLER_ACTOR")
    starting(kitchens.scene, controller, GPU=9.0)

    diagnosis = kitchens.diagnosis()

    assert diagnosis.verdict in ("deadlock", "hang")
    wait = diagnosis.vertices[kitchens.router.key].wait
    assert wait is not None
    assert not any(isinstance(target.vertex, UnknownKey) for target in wait.groups[0].targets)


def test_another_request_in_the_second_sample_is_no_deadlock() -> None:
    """The slot was free between the samples, and another request uses it now."""
    kitchens = Kitchens(queued({"s1": 1}))
    kitchens.scene.sample()
    other = request_to(kitchens.scene, kitchens.shop, by=kitchens.driver)
    kitchens.shop.running, kitchens.shop.coros = [], []
    executes(kitchens.shop, other, ORDER).awaits(request_to(kitchens.scene, kitchens.kitchen, by=kitchens.shop))
    kitchens.scene.sample()

    assert kitchens.scene.diagnose().verdict != "deadlock"


def test_a_thread_of_a_sync_method_is_named_by_its_request() -> None:
    kitchens = Kitchens(queued({"s1": 1}))
    thread = kitchens.kitchen.thread("AnyIO worker thread", "user").awaits_result(kitchens.router)
    kitchens.cook.awaits((thread,))
    kitchens.cook.is_library = True

    finding = kitchens.diagnosis().findings[0]

    assert finding.kind == "deadlock"
    assert thread.key in finding.members
    assert kitchens.cook.key in finding.helpers
    assert "Kitchen.cook" in finding.summary


def test_a_deployment_that_waits_for_itself_is_reported() -> None:
    scene = Scene()
    driver, shop = scene.driver(), replica(scene, ORDER, "s1")
    ordered = request_to(scene, shop, by=driver)
    driver.gets(ordered)
    order = executes(shop, ordered, ORDER)
    order.awaits(shop.coroutine(ordered, is_library=True).is_queued(queued({"s1": 1})))

    finding = scene.sample().sample().diagnose().findings[0]

    assert finding.kind == "deadlock"
    assert "Shop.order waits for queued request Shop.is_paid, which is queued behind Shop.order" in finding.summary


def test_queued_requests_share_the_ongoing_requests() -> None:
    kitchens = Kitchens(queued({"s1": 40}))
    for _ in range(39):
        cooked = request_to(kitchens.scene, kitchens.kitchen, by=kitchens.shop)
        ordered = request_to(kitchens.scene, kitchens.shop, by=kitchens.driver)
        executes(kitchens.shop, ordered, ORDER).awaits(cooked)
        router = kitchens.kitchen.coroutine(cooked, is_library=True).is_queued(queued({"s1": 40}))
        executes(kitchens.kitchen, cooked, COOK).awaits(router)

    diagnosis = kitchens.diagnosis()

    assert diagnosis.verdict == "deadlock"
    wait = diagnosis.vertices[kitchens.router.key].wait
    assert wait is not None
    assert len(wait.groups[0].targets) == 1
    assert "Raise max_ongoing_requests of Shop" in str(diagnosis.findings[0].advice)


def client(proxy: SceneProcess) -> SceneCoroutine:
    """A coroutine of Serve's proxy that waits for the response to a request by HTTP."""
    coro = proxy.coroutine(is_library=True)
    coro.outer = (PROXY,)
    return coro


def test_a_clients_request_waits_behind_a_deadlock() -> None:
    kitchens = Kitchens(queued({"s1": 1}))
    proxy = kitchens.scene.async_actor("ProxyActor", name="SERVE_PROXY_ACTOR-1")
    ongoing = client(proxy).awaits(kitchens.shop.running[0])
    router = proxy.coroutine(is_library=True).is_queued(queued({"s1": 1}))
    waiting = client(proxy).awaits(router)
    other = proxy.coroutine(is_library=True).awaits(kitchens.shop.running[0])

    diagnosis = kitchens.diagnosis()

    finding = diagnosis.findings[0]
    assert {ongoing.key, waiting.key, router.key} <= set(finding.blocked_behind)
    assert other.key not in finding.blocked_behind
    assert any("a client's request in Serve's proxy" in step.text for step in finding.explanation)


def test_a_request_that_cannot_begin_on_a_blocked_event_loop_waits_for_that_loop() -> None:
    """Shop.order has blocked the loop on which Shop.is_paid would begin, as ray.get in an async method does."""
    scene = Scene()
    driver, shop, store = scene.driver(), replica(scene, ORDER, "s1"), scene.actor("Store")
    thread = shop.thread("Thread-1 (_run_user_code_event_loop)", "user")
    ordered, price = request_to(scene, shop, by=driver), scene.call(store, "price", by=shop)
    paid = request_to(scene, shop, by=store)
    driver.gets(ordered)
    order, is_paid = shop.begins(ordered).executes(ORDER), shop.begins(paid).executes(IS_PAID)
    order.is_library = is_paid.is_library = True
    order.awaits((thread,))
    thread.gets(price)
    store.runs(price).gets(paid)
    is_paid.awaits((thread,), what=OTHER_LOOP.name)

    diagnosis = scene.sample().sample().diagnose()

    finding = diagnosis.findings[0]
    assert finding.kind == "deadlock"
    assert {thread.key, store.key, is_paid.key} == set(finding.members)
    assert describe(diagnosis.vertices[thread.key]) == "Shop.order"
    assert "Await the ObjectRef" in str(finding.advice)


def test_constructors_that_wait_for_each_other_are_named() -> None:
    scene = Scene()
    driver = scene.driver()
    shop, kitchen = replica(scene, ORDER, "s1"), replica(scene, COOK, "k1")
    for proc, request in ((shop, COOK), (kitchen, ORDER)):
        start = proc.begins(scene.call(proc, "initialize_and_get_metadata", by=driver))
        constructor = proc.coroutine(start.task)
        constructor.function = f"{proc.actor.class_name.rpartition(':')[2]}.__init__" if proc.actor else ""
        constructor.outer = (INITIALIZES,)
        start.is_library = True
        start.awaits(constructor)
        router = proc.coroutine(start.task, is_library=True)
        constructor.awaits(router.is_queued(QueuedRequest(request=request, most_replicas=1)))

    finding = scene.sample().sample().diagnose().findings[0]

    assert finding.kind == "deadlock"
    assert "Kitchen.__init__" in finding.summary
    assert "Shop.__init__" in finding.summary
    assert "Do not wait for queued request Kitchen.cook in Shop.__init__" in str(finding.advice)
