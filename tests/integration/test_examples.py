"""Every example is explained as its docstring expects, on real Ray, and no look-alike is ever called a deadlock."""

import ast
from dataclasses import dataclass

import pytest

from tests.clusters import EXAMPLES, run_example
from tests.dstack import Json, check, settled_check, waiting

pytestmark = pytest.mark.ray

TIMES = 10


@dataclass(frozen=True)
class Expected:
    """What a check of an example tells: the first finding's kind, who is in it, and the line it points at."""

    kind: str
    members: frozenset[str]
    line: str
    exit_code: int


STUCK = {
    "two_actors": Expected(
        "deadlock",
        frozenset({"Cashier.order", "Kitchen.cook", "Cashier.is_paid"}),
        "paid: bool = ray.get(self.cashier.is_paid.remote(dish))",
        1,
    ),
    "ring_of_five": Expected(
        "deadlock",
        frozenset(
            {
                "Member.pass_token",
                "MemberWithThread.pass_token",
                'thread "helper"',
                "MemberWithWait.pass_token",
            }
        ),
        "ray.wait([minutes, passed], num_returns=2)",
        1,
    ),
    "self_call": Expected(
        "deadlock",
        frozenset({"Ledger.total", "Ledger.entry"}),
        "parts: list[int] = ray.get([me.entry.remote(0), me.entry.remote(1)])",
        1,
    ),
    "argument_never_comes": Expected("infeasible", frozenset({"develop"}), "print(ray.get(caption))", 1),
}

FREE = {
    "slow_actor_queue": Expected(
        "blocked", frozenset({"driver slow_actor_queue.py", "Clerk.stamp"}), "time.sleep(60)", 0
    ),
    "worker_tree": Expected("blocked", frozenset({"driver worker_tree.py", "count"}), "time.sleep(seconds)", 0),
    "gpu_pipeline": Expected("starved", frozenset({"driver gpu_pipeline.py", "step"}), "time.sleep(seconds)", 0),
    "polling": Expected("polling", frozenset({"driver polling.py"}), "time.sleep(seconds)", 0),
    "nested_get_one_cpu": Expected(
        "blocked", frozenset({"driver nested_get_one_cpu.py", "outer"}), "time.sleep(seconds)", 0
    ),
}


def test_every_example_is_expected_to_be_something() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == STUCK.keys() | FREE.keys()


@pytest.mark.parametrize("name", [*STUCK, *FREE])
def test_the_docstring_says_what_is_expected(name: str) -> None:
    expected = {**STUCK, **FREE}[name]
    verdict = {"deadlock": "deadlock", "infeasible": "hang"}.get(expected.kind, "blocked")

    docstring = ast.get_docstring(ast.parse((EXAMPLES / f"{name}.py").read_text())) or ""

    assert docstring.splitlines()[-1].startswith(f"Expected: {verdict}")


@pytest.mark.parametrize("name", STUCK)
def test_a_hang_is_found_and_explained(name: str) -> None:
    expected = STUCK[name]

    with run_example(name) as example:
        document = settled_check(example.address, example.environment, lambda told: bool(told["exit_code"] == 1))

    finding = document["findings"][0]
    assert finding["kind"] == expected.kind
    assert finding["confirmed"]
    assert {member["execution"] for member in finding["members"]} == expected.members
    assert expected.line in lines(document)
    assert any(member["execution"] == f"driver {name}.py" for member in finding["blocked_behind"])
    assert not document["incomplete"]
    assert all(one["evidence"] == "exact" for member in finding["members"] for one in member["waits_for"])


@pytest.mark.parametrize("name", FREE)
def test_a_look_alike_is_never_called_a_hang(name: str) -> None:
    expected = FREE[name]

    with run_example(name) as example:
        settled = settled_check(
            example.address,
            example.environment,
            lambda told: expected.members <= waiting(told) and expected.line in lines(told),
        )
        verdicts = [check(example.address, example.environment) for _ in range(TIMES)]

    assert [finding["kind"] for finding in settled["findings"]] == [expected.kind]
    assert {told["verdict"] for told in verdicts} == {"blocked"}
    assert {told["exit_code"] for told in verdicts} == {expected.exit_code}
    assert not [finding for told in verdicts for finding in told["findings"] if finding["kind"] in ("deadlock",)]


def test_the_gpus_holder_is_named() -> None:
    with run_example("gpu_pipeline") as example:
        document = settled_check(
            example.address, example.environment, lambda told: "step" in waiting(told) and bool(told["findings"])
        )

    finding = document["findings"][0]
    assert finding["resources"] == ["GPU"]
    assert 'actor Trainer "training of another team"' in finding["final_blockers"][0]["execution"]
    assert finding["final_blockers"][0]["waiters_total"] == 5


def test_a_long_queue_is_counted() -> None:
    with run_example("slow_actor_queue") as example:
        document = settled_check(
            example.address, example.environment, lambda told: "driver slow_actor_queue.py" in waiting(told)
        )

    blocker = document["findings"][0]["final_blockers"][0]
    assert (blocker["task_name"], blocker["waiters_direct"], blocker["waiters_total"]) == ("Clerk.stamp", 50, 51)


def lines(document: Json) -> set[str]:
    """All source lines that the findings point at."""
    return {
        member["source"]
        for finding in document["findings"]
        for member in (*finding["members"], *finding["blocked_behind"], *finding["final_blockers"])
        if member["source"]
    }
