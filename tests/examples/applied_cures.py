"""The first cure of each deadlock of an example, as a change of the example: with it, the example ends.

``MORE`` are others that are enough, so that each kind of change was applied to an example.
``NOT_ENOUGH`` are changes that the same lists call not enough: with them, the example still hangs.
``tests/unit/analysis/findings/test_cures.py`` compares ``words`` with the cures of the recorded snapshot, and
``tests/integration/test_fixes.py`` runs the changed examples.
"""

from __future__ import annotations

from tests.examples.applied_fixes import Applied


def _slots(name: str, cls: str, now: int = 1) -> Applied:
    """One slot more for an actor whose options have its name, or the number of its slots."""
    changes = (
        {f"max_concurrency={now}": f"max_concurrency={now + 1}"}
        if now > 1
        else {f"ray.remote({cls}).options(": f"ray.remote({cls}).options(max_concurrency=2, "}
    )
    return Applied(name, f"raise max_concurrency of {cls} to {now + 1} (now {now})", changes)


def _limit(name: str, cls: str) -> Applied:
    """The same where the example sets it to one."""
    words = f"raise max_concurrency of {cls} to 2 (now 1)"
    return Applied(name, words, {"max_concurrency=1": "max_concurrency=2"})


ONE_GPU_MORE = {"num_gpus=1 if own": "num_gpus=2 if own"}
COPY = "copy the arrays that are kept"

CURED: tuple[Applied, ...] = (
    _slots("two_actors", "Cashier"),
    Applied(
        "self_call",
        "run self.entry() in Ledger.total",
        {"ray.get([me.entry.remote(0), me.entry.remote(1)])": "[self.entry(0), self.entry(1)]"},
        is_quick=True,
    ),
    Applied(
        "hangs/all_threads_call_home",
        "run self.rate() in Exchange.quote",
        {
            "        exchange = ray.get_runtime_context().current_actor\n": "",
            "rate: float = ray.get(exchange.rate.remote())": "rate = self.rate()",
        },
    ),
    _slots("hangs/call_comes_home", "Bank"),
    _slots("hangs/driver_awaits_ring", "Clerk"),
    _slots("hangs/driver_pool", "Neighbour"),
    _slots("hangs/either_calls_back", "Traveller"),
    _slots("hangs/future_in_an_actor", "Editor"),
    _slots("hangs/gate_without_slot", "Gate", 2),
    _slots("hangs/join_and_callback", "Camera"),
    _slots("hangs/polling_ring_without_end", "Clerk"),
    _slots("hangs/releases_behind_acquires", "Semaphore", 20),
    _slots("hangs/request_to_stuck_server", "Client"),
    _slots("hangs/restart_calls_home", "Shop"),
    _slots("hangs/two_of_three", "Chair"),
    _slots("hangs/barrier_one_missing", "Rank"),
    _limit("hangs/async_backpressure", "Decoder"),
    _limit("hangs/async_slots_full", "Parrot"),
    Applied(  # the service goes on until it is told to stop, which the second slot lets happen
        "hangs/consumer_calls_home",
        "raise max_concurrency of Service to 2 (now 1)",
        {
            "max_concurrency=1": "max_concurrency=2",
            "print(ray.get(end))": "service.stop.remote()\n    print(ray.get(end))",
        },
    ),
    Applied(  # the other branch takes a quarter of an hour
        "hangs/gather_with_stuck_branch",
        "raise max_concurrency of Headquarters to 2 (now 1)",
        {"max_concurrency=1": "max_concurrency=2", "900.0": "0.1"},
    ),
    _limit("hangs/sync_and_async_ring", "Desk"),
    Applied(
        "hangs/mutual_get",
        "raise max_concurrency of Guest to 2 (now 1)",
        {"ray.remote(Guest)": "ray.remote(max_concurrency=2)(Guest)"},
    ),
    Applied(
        "hangs/graph_stage_calls_home",
        "raise max_concurrency of Pipeline to 2 (now 1)",
        {'name="pipeline"': 'name="pipeline", max_concurrency=2'},
    ),
    Applied(
        "hangs/concurrency_group_full",
        "raise the threads of concurrency group requests of Server to 2 (now 1)",
        {'"requests": 1': '"requests": 2'},
    ),
    Applied(
        "hangs/either_result_is_late",
        "raise the threads of the concurrency group of Baker.assist to 2 (now 1)",
        {'"work": 1': '"work": 2'},
    ),
    # Event loops
    Applied(
        "hangs/sync_get_in_async_method",
        "await the ObjectRef instead of ray.get in Office.report",
        {"ray.get(me.figures.remote())": "await me.figures.remote()"},
    ),
    Applied(
        "hangs/loop_of_group_blocked",
        "await the ObjectRef instead of ray.get in Server.handle",
        {"ray.get(server.user.remote())": "await server.user.remote()"},
    ),
    Applied(
        "hangs/event_set_on_own_loop",
        "await instead of blocking in threading.Event.wait in Office.report",
        {"threading.Event()": "asyncio.Event()", "        self.counted.wait()": "        await self.counted.wait()"},
    ),
    Applied(
        "hangs/future_set_on_own_loop",
        "await instead of blocking in Future.result in Office.report",
        {"return future.result()": "return await asyncio.wrap_future(future)"},
    ),
    Applied(
        "hangs/futures_of_own_loop",
        "await instead of blocking in concurrent.futures.wait in Office.report",
        {
            "    def report(self)": "    async def report(self)",
            "        done, _ = wait(futures)\n        return sum(future.result() for future in done)": (
                "        return sum(await asyncio.gather(*map(asyncio.wrap_future, futures)))"
            ),
        },
    ),
    Applied(
        "hangs/result_on_own_loop",
        "await instead of blocking in Future.result in Office.report",
        {
            "return asyncio.run_coroutine_threadsafe(self.figures(), loop).result()": (
                "return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.figures(), loop))"
            )
        },
    ),
    Applied(
        "hangs/sync_method_on_loop",
        "await instead of blocking in Future.result in Office.report",
        {
            "    def total(self)": "    async def total(self)",
            "asyncio.run_coroutine_threadsafe(self.figures(), loop).result()": (
                "await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.figures(), loop))"
            ),
            "    def report(self)": "    async def report(self)",
            "{self.total()}": "{await self.total()}",
        },
    ),
    Applied(
        "hangs/second_loop_awaits_first",
        "await instead of blocking in thread.join in Office.report",
        {"        thread.join()": "        await asyncio.to_thread(thread.join)"},
    ),
    Applied(
        "hangs/lock_across_await",
        "use an asyncio.Lock instead of the threading.Lock in Journal.write",
        {"threading.Lock()": "asyncio.Lock()", "        with self.lock": "        async with self.lock"},
    ),
    Applied(
        "hangs/pool_asks_own_loop",
        'do not wait for thread "ThreadPoolExecutor-0_0" in Office.report',
        {"return pool.submit(self.ask, loop).result()": "return await asyncio.to_thread(self.ask, loop)"},
    ),
    Applied(
        "hangs/pool_waits_for_itself",
        'give the executor of thread "writer_0" another thread (max_workers)',
        {"max_workers=1": "max_workers=2"},
    ),
    Applied(
        "hangs/tasks_await_each_other",
        "do not wait for each other in",
        {"self.side(about_right)": "asyncio.sleep(0.1, result=1)"},
    ),
    # Locks and pipes
    Applied(
        "hangs/async_lock",
        "release the lock in Vault.open before it waits",
        {
            "        async with self.lock:\n            return str(await guard.inspect.remote(me))": (
                "        async with self.lock:\n            inspected = guard.inspect.remote(me)\n"
                "        return str(await inspected)"
            )
        },
    ),
    Applied(
        "hangs/lock_and_callback",
        "release the lock in Shelf.restock before it waits",
        {
            "        with self.lock:\n            self.goods += ray.get(warehouse.pick.remote(shelf))": (
                "        picked = ray.get(warehouse.pick.remote(shelf))\n"
                "        with self.lock:\n            self.goods += picked"
            )
        },
    ),
    Applied(
        "hangs/rlock_and_callback",
        "release the lock in Account.pay before it waits",
        {
            "        with self.lock:\n            if ray.get(bank.confirm.remote(amount, account)):\n"
            "                self.amount -= amount": (
                "        if ray.get(bank.confirm.remote(amount, account)):\n"
                "            with self.lock:\n                self.amount -= amount"
            )
        },
    ),
    Applied(
        "hangs/locks_of_two_actors",
        "release the lock in Account.transfer before it waits",
        {"            await other.deposit.remote(amount)": "        await other.deposit.remote(amount)"},
    ),
    Applied(
        "hangs/locks_in_two_orders",
        "take the locks in the same order in",
        {
            "current, savings, both": "savings, current, both",
            "        both_begun.wait()\n": "        print('begun')\n",
        },
    ),
    Applied(
        "hangs/file_lock_of_caller",
        "release the file lock that Cache.store needs before waiting for another process",
        {
            "            stored: int = ray.get(other.store.remote(path))\n            return stored": (
                '            file.write("refreshed")\n        return int(ray.get(other.store.remote(path)))'
            )
        },
    ),
    Applied(
        "hangs/child_output_unread",
        "writes before waiting for anything else",
        {"        return exporter.wait()": "        exporter.communicate()\n        return exporter.wait()"},
    ),
    # Waits that are left out, passed on or made later
    Applied(
        "hangs/call_in_init",
        "make the call of plugin:Plugin.__init__ after it has ended",
        {
            "    def __init__(self, registry: Any) -> None:\n"
            "        me = ray.get_runtime_context().current_actor\n"
            "        self.number: int = ray.get(registry.register.remote(me))\n\n": "",
            ".remote(registry)\n": ".remote()\n    ray.get(registry.register.remote(plugin))\n",
        },
    ),
    Applied(
        "hangs/results_of_each_other",
        "return the ObjectRef instead of ray.get in Poet.write",
        {'return f"{self.line}, {ray.get(other)}"': "return [other]"},
    ),
    Applied(
        "hangs/argument_needs_later_call",
        "pass the ObjectRef to Register.enter inside a list",
        {
            "self.register.enter.remote(bill)": "self.register.enter.remote([bill])",
            "        self.bills.append(bill)": "        self.bills.append(len([bill]))",
        },
    ),
    Applied(
        "hangs/async_consumer_of_stream",
        "read the stream of Camera.frames to its end before waiting for anything else",
        {
            "        settings: int": "        first += sum([await ref async for ref in frames])\n        settings: int",
        },
    ),
    Applied(
        "ring_of_five",
        'do not wait for thread "helper" in MemberWithThread.pass_token',
        {"        helper.join()\n        return hops[0]": "        return len(hops)"},
    ),
    Applied(
        "hangs/across_two_jobs",
        "Sales.sold and return the ObjectRef instead of ray.get in Stock.left",
        {
            "left: int = ray.get(stock.left.remote())\n        return 100 - left": "return stock.left.remote()",
            "sold: int = ray.get(sales.sold.remote())\n        return 100 - sold": "return sales.sold.remote()",
        },
    ),
    # Resources
    Applied("hangs/backpressure", "add 1 GPU", ONE_GPU_MORE),
    Applied("hangs/nested_gpu_tasks", "add 1 GPU", ONE_GPU_MORE),
    Applied("hangs/restart_without_room", "add 1 GPU", ONE_GPU_MORE),
    Applied("hangs/licence_not_lent", "add 1 licence", {'licences = {"licence": 1}': 'licences = {"licence": 2}'}),
    Applied(
        "hangs/gpu_of_bundle",
        "reserve 1 GPU in placement group one of each",
        {**ONE_GPU_MORE, '[{"CPU": 1, "GPU": 1}]': '[{"CPU": 1, "GPU": 1}, {"GPU": 1}]'},
    ),
    Applied(
        "hangs/argument_beside_own",
        "give the nodes larger object stores, or pass less data as arguments",
        {"store = 200 * MIB": "store = 400 * MIB"},
    ),
    Applied("hangs/actors_for_life", "set num_cpus=0 for actor Counter", {"num_cpus=1": "num_cpus=0"}),
    Applied(
        "hangs/actor_pinned_to_full_node",
        "set num_cpus=0 for actor Parent",
        {"ray.remote(Parent).options(num_cpus=1)": "ray.remote(Parent).options(num_cpus=0)"},
    ),
    Applied(
        "hangs/child_of_trial",
        "set num_cpus=0 for actor Trial",
        {"ray.remote(Trial).options(num_cpus=1": "ray.remote(Trial).options(num_cpus=0"},
    ),
    Applied("hangs/half_cpus_on_two_nodes", "set num_cpus=0 for actor Half", {"num_cpus=0.5": "num_cpus=0"}),
    Applied("hangs/main_awaits_own_thread", "set num_cpus=0 for run", {"(num_cpus=2)": "(num_cpus=0)"}),
    Applied("hangs/main_awaits_polling_thread", "set num_cpus=0 for run", {"(num_cpus=2)": "(num_cpus=0)"}),
    Applied("hangs/polls_for_late_actor", "set num_cpus=0 for actor Player", {"num_cpus=1": "num_cpus=0"}),
    Applied(
        "hangs/polls_status_of_starved_task",
        "set num_cpus=0 for actor Monitor",
        {'name="monitor", num_cpus=2': 'name="monitor", num_cpus=0'},
    ),
    Applied(
        "hangs/spread_behind_actors", "set num_cpus=0 for actor Guard", {"options(num_cpus=1": "options(num_cpus=0"}
    ),
    Applied(
        "hangs/nested_pool",
        "let ray.util.multiprocessing.Pool ask for less",
        {'Pool(2, ray_remote_args={"num_cpus": 1})': 'Pool(2, ray_remote_args={"num_cpus": 0})'},
    ),
    Applied(
        "hangs/pack_behind_group",
        "reserve less CPU in placement group day shift",
        {'[{"CPU": 1}, {"CPU": 1}]': '[{"CPU": 1}]'},
    ),
    Applied(
        "hangs/second_placement_group",
        "reserve less CPU in placement group search",
        {'* int(ray.cluster_resources()["CPU"])': '* int(ray.cluster_resources()["CPU"] - 1)'},
    ),
    # Compiled graphs
    Applied(
        "hangs/actor_in_two_graphs",
        "give each compiled graph actors of its own",
        {
            "    with InputNode() as text:\n        ranking": (
                "    model = ray.remote(num_cpus=0)(Model).remote()\n    with InputNode() as text:\n        ranking"
            )
        },
    ),
    Applied("hangs/graph_output_kept", COPY, {"history.append(state)": "history.append(state.copy())"}),
    Applied(
        "hangs/graph_awaited_output_kept", COPY, {"history.append(await state)": "history.append((await state).copy())"}
    ),
    Applied("hangs/graph_execute_without_room", COPY, {"self.kept.append(state)": "self.kept.append(state.copy())"}),
    Applied("hangs/graph_input_kept_by_stage", COPY, {"self.kept.append(state)": "self.kept.append(state.copy())"}),
)
"""The first cure of each deadlock of the examples that need no library."""

MORE: tuple[Applied, ...] = (
    _slots("self_call", "Ledger"),
    _slots("hangs/all_threads_call_home", "Exchange", 2),
    Applied(
        "hangs/mutual_get",
        "give Guest.name a concurrency group of its own",
        {
            "    def name(self)": '    @ray.method(concurrency_group="names")\n    def name(self)',
            "ray.remote(Guest)": 'ray.remote(concurrency_groups={"names": 1})(Guest)',
        },
    ),
    Applied(
        "hangs/mutual_get",
        "make Guest.introduce and Guest.name async def",
        {
            "    def name(self)": "    async def name(self)",
            "    def introduce(self)": "    async def introduce(self)",
            "ray.get(self.other.name.remote())": "await self.other.name.remote()",
        },
    ),
    Applied(
        "hangs/call_comes_home",
        "return the ObjectRef instead of ray.get in Bank.lend",
        {
            "        value: int = ray.get(broker.value.remote(bank, lawyer))\n        return value // 2": (
                "        return broker.value.remote(bank, lawyer)"
            ),
            "print(ray.get(loan))": "print(ray.get(ray.get(loan)) // 2)",
        },
    ),
    Applied(
        "hangs/nested_gpu_tasks",
        "return the ObjectRef instead of ray.get in train",
        {
            "    score: float = ray.get(evaluate.remote(0.5))\n    return score": "    return evaluate.remote(0.5)",
            "print(ray.get(score))": "print(ray.get(ray.get(score)))",
        },
    ),
    Applied(
        "hangs/licence_not_lent",
        "ask for less licence in solve",
        {'@ray.remote(resources={"licence": 1})\ndef solve': "@ray.remote\ndef solve"},
    ),
    Applied("hangs/actors_for_life", "or start fewer of them", {"range(cpus + 1)": "range(cpus)"}),
    Applied(
        "hangs/barrier_one_missing",
        "let Rank.train_from reach the barrier before it waits",
        {
            "        weights: list[float] = ray.get(first.weights.remote())\n"
            "        ray.get(barrier.arrive.remote())\n": "        ray.get(barrier.arrive.remote())\n"
            "        weights: list[float] = ray.get(first.weights.remote())\n"
        },
    ),
    Applied(
        "hangs/argument_needs_later_call",
        "create that before the call is submitted",
        {
            "self.clerk.write.remote(ray.get_runtime_context().current_actor)": (
                "ray.get(self.clerk.write.remote(ray.get_runtime_context().current_actor))"
            )
        },
    ),
    Applied(
        "hangs/async_backpressure",
        "read the stream of Decoder.frames to its end before waiting for anything else",
        {
            "    print(ray.get(decoder.close.remote()))\n    print(sum(1 for _ in frames))": (
                "    print(sum(1 for _ in frames))\n    print(ray.get(decoder.close.remote()))"
            )
        },
    ),
    Applied(
        "hangs/actor_in_two_graphs",
        "call teardown() of one before compiling the next",
        {"    rank = ranking": "    embed.teardown()\n    rank = ranking"},
    ),
    Applied(
        "hangs/libraries/serve_mutual_calls", "raise max_ongoing_requests of Shop to 2", {"LIMIT = 1": "LIMIT = 2"}
    ),
    Applied(
        "hangs/libraries/serve_replicas_start_each_other",
        "do not wait for queued request Shop.opens_at in Kitchen.__init__",
        {
            "        self.hour: int = await self.shop.opens_at.remote()\n": "",
            '        return ["soup"]': '        return ["soup"] if await self.shop.opens_at.remote() else []',
            "        self.menu: list[str] = await kitchen.menu.remote()\n": "        self.kitchen = kitchen\n",
            "bind()), route_prefix=None)": (
                "bind()), route_prefix=None)\n"
                '    print(serve.get_deployment_handle("Kitchen", "default").menu.remote().result())\n'
            ),
        },
    ),
    Applied(
        "hangs/libraries/train_needs_own_cpus",
        "ask for less (ScalingConfig of the trainer)",
        {"num_workers=2": "num_workers=1"},
    ),
    Applied(
        "hangs/libraries/tune_trial_lacks_a_bundle",
        "reserve 1 CPU in placement group",
        {'[{"CPU": 1}, {"CPU": 1}]': '[{"CPU": 1}] * 3', "num_cpus=2": "num_cpus=3"},
    ),
    Applied(
        "hangs/libraries/torch_both_receive",
        "let one rank send while the other receives",
        {
            "        dist.recv(theirs, src=1 - self.rank)\n": (
                "        if self.rank == 0:\n            dist.recv(theirs, src=1)\n"
            ),
            "        dist.send(mine, dst=1 - self.rank)\n": (
                "        dist.send(mine, dst=1 - self.rank)\n"
                "        if self.rank == 1:\n            dist.recv(theirs, src=0)\n"
            ),
        },
    ),
)

NOT_ENOUGH: tuple[Applied, ...] = (
    Applied(
        "two_actors",
        "return the ObjectRef instead of ray.get in Kitchen.cook",
        {
            "paid: bool = ray.get(self.cashier.is_paid.remote(dish))\n": "return self.cashier.is_paid.remote(dish)\n",
            '        return f"hot {dish}" if paid else "nothing"\n': "",
            "meal: str = ray.get(kitchen.cook.remote(dish))": "meal: str = ray.get(ray.get(kitchen.cook.remote(dish)))",
        },
    ),
    Applied(
        "ring_of_five",
        "raise max_concurrency of Member to 2 (now 1)",
        {'scheduling_strategy="SPREAD"': 'scheduling_strategy="SPREAD", max_concurrency=2'},
    ),
    _slots("hangs/across_two_jobs", "Sales"),
    Applied(
        "hangs/child_of_trial",
        "return the ObjectRef instead of ray.get in Trial.fit",
        {
            "        rows: int = ray.get(load.remote())\n        return rows": "        return load.remote()",
            "print(ray.get(rows))": "print(ray.get(ray.get(rows)))",
        },
    ),
)
"""Changes that do not free all of a deadlock, by the same lists."""
