"""The names and groups of attempts: of the application's own, of a driver, and of Ray's libraries."""

from __future__ import annotations

from dstack.analysis.history.task_names import TaskNames
from tests.unit.analysis.history.histories import attempt, history_of

DRIVER = attempt("d", 0, 9, kind="DRIVER_TASK")
STEP = attempt("s", 0, 9, name="Trainer.step", kind="ACTOR_TASK", node_id="n2")
READ = attempt("r", 0, 9, name="ReadParquet->Map(parse)", node_id="gone")


def test_names() -> None:
    names = TaskNames(history_of([DRIVER, STEP, READ]))

    assert [names.step(one).name for one in (DRIVER, STEP, READ)] == [
        "driver train.py",
        "Trainer.step",
        "Data operator ReadParquet->Map(parse)",
    ]
    assert names.step(READ).origin == "ray"
    assert names.step(attempt("x", 0, 1, name=" ")).name == " "


def test_groups() -> None:
    names = TaskNames(history_of([DRIVER, STEP, READ]))

    assert [names.groups(one, "node") for one in (STEP, READ)] == [("node 10.0.0.2",), ("node unknown",)]
    assert [names.groups(one, "kind") for one in (DRIVER, STEP, READ)] == [("drivers",), ("actor Trainer",), ("tasks",)]
    assert names.groups(STEP, "job") == ("job 01000000 train.py",)
    assert names.groups(STEP, None) == ()
