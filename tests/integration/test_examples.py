"""Every example is explained as its docstring expects, on real Ray, and no look-alike is ever called a deadlock."""

from dataclasses import dataclass

import pytest

from tests.clusters import EXAMPLES, expected_of, run_example
from tests.dstack import Json, check, settled_check, waiting

pytestmark = pytest.mark.ray

TIMES = 10


@dataclass(frozen=True)
class Expected:
    """Who is in the finding, the line it points at, and the final blocker with its waiters, directly and in all."""

    members: frozenset[str]
    line: str
    blocker: tuple[str, int, int] | None = None


STUCK = {
    "two_actors": Expected(
        frozenset({"Cashier.order", "Kitchen.cook", "Cashier.is_paid"}),
        "paid: bool = ray.get(self.cashier.is_paid.remote(dish))",
    ),
    "ring_of_five": Expected(
        frozenset({"Member.pass_token", "MemberWithThread.pass_token", 'thread "helper"', "MemberWithWait.pass_token"}),
        "ray.wait([minutes, passed], num_returns=2)",
    ),
    "self_call": Expected(
        frozenset({"Ledger.total", "Ledger.entry"}),
        "parts: list[int] = ray.get([me.entry.remote(0), me.entry.remote(1)])",
    ),
    "argument_never_comes": Expected(frozenset({"develop"}), "print(ray.get(caption))"),
}

FREE = {
    "slow_actor_queue": Expected(
        frozenset({"driver slow_actor_queue.py", "Clerk.stamp"}), "time.sleep(60)", ("Clerk.stamp", 50, 51)
    ),
    "worker_tree": Expected(frozenset({"driver worker_tree.py", "count"}), "time.sleep(seconds)", ("count", 1, 3)),
    "gpu_pipeline": Expected(
        frozenset({"driver gpu_pipeline.py", "step"}),
        "time.sleep(seconds)",
        ('end of actor Trainer "training of another team", which holds 1 CPU and 1 GPU for life', 1, 5),
    ),
    "polling": Expected(frozenset({"driver polling.py"}), "time.sleep(seconds)", ("simulate", 1, 1)),
    "nested_get_one_cpu": Expected(
        frozenset({"driver nested_get_one_cpu.py", "outer"}), "time.sleep(seconds)", ("inner", 1, 2)
    ),
}


def test_every_example_is_expected_to_be_something() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == STUCK.keys() | FREE.keys()


@pytest.mark.parametrize("name", STUCK)
def test_a_hang_is_found_and_explained(name: str) -> None:
    expected = STUCK[name]

    with run_example(name) as example:
        document = settled_check(example.address, example.environment, lambda told: bool(told["exit_code"] == 1))

    finding = document["findings"][0]
    assert (document["verdict"], finding["kind"]) == kinds(name)
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
            example.address, example.environment, lambda told: blockers(told)[:1] == [expected.blocker]
        )
        verdicts = [check(example.address, example.environment) for _ in range(TIMES)]

    assert (settled["verdict"], settled["findings"][0]["kind"]) == kinds(name)
    assert len(settled["findings"]) == 1
    assert expected.members <= waiting(settled)
    assert expected.line in lines(settled)
    assert {(told["verdict"], told["exit_code"]) for told in verdicts} == {("blocked", 0)}


def kinds(name: str) -> tuple[str, str]:
    """Verdict and kind of finding as the example's docstring has them; the kind is the verdict where it is not told."""
    verdict, kind = expected_of(name)
    return verdict, kind or verdict


def blockers(document: Json) -> list[tuple[str, int, int]]:
    """The final blockers of all findings with their waiters, directly and in all."""
    return [
        (blocker["execution"], blocker["waiters_direct"], blocker["waiters_total"])
        for finding in document["findings"]
        for blocker in finding["final_blockers"]
    ]


def lines(document: Json) -> set[str]:
    """All source lines that the findings point at."""
    return {
        member["source"]
        for finding in document["findings"]
        for member in (*finding["members"], *finding["blocked_behind"], *finding["final_blockers"])
        if member["source"]
    }
