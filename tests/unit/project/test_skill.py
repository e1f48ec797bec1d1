"""The skill for coding assistants, followed to the letter, leads to the cause of five examples."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dstack.cli import main
from tests.examples.recorded import recorded
from tests.paths import RECORDED_CALLS, ROOT

SKILL = ROOT / "docs" / "skills" / "dstack" / "SKILL.md"
FILE = "hang.json.gz"
Json = dict[str, Any]


def commands() -> list[list[str]]:
    """The arguments of the commands that read a file, in the order of the skill."""
    lines = re.findall(rf"^dstack (.+{re.escape(FILE)})$", SKILL.read_text(), re.MULTILINE)
    return [shlex.split(line) for line in lines if " -o " not in line]


def run(arguments: list[str], file: Path) -> Result:
    return CliRunner().invoke(main, [str(file) if argument == FILE else argument for argument in arguments])


def fields(kind: str) -> tuple[list[str], list[str]]:
    """The fields of the cause and of the change, in the row of a kind of finding."""
    for row in SKILL.read_text().splitlines():
        kinds, *cells = [re.findall("`([^`]+)`", cell) for cell in row.split("|")[1:-1]] or [[]]
        if kind in kinds and len(cells) == 2:
            return cells[0], cells[1]
    raise AssertionError(f"the table has no {kind}")


def values(finding: Json, path: str) -> list[Any]:
    """What is at a path such as ``members[].file``."""
    found: list[Any] = [finding]
    for name in path.split("."):
        found = [one[name.removesuffix("[]")] for one in found]
        if name.endswith("[]"):
            found = [item for one in found for item in one]
    return [one for one in found if one is not None]


def text_at(finding: Json, paths: list[str]) -> str:
    return " ".join(str(value) for path in paths for value in values(finding, path))


@pytest.mark.parametrize(
    ("name", "code", "verdict", "cause", "change"),
    [
        ("two_actors", 1, "deadlock", "ray.get(self.cashier.is_paid.remote(dish))", "raise max_concurrency of Cashier"),
        ("hangs/too_many_gpus", 1, "hang", "render", "add a node that has it"),
        ("hangs/libraries/torch_rank_died", 1, "hang", "its worker process has died", "Restart all ranks"),
        (
            "hangs/request_to_child_server",
            0,
            "stalled",
            "request_to_child_server.py 27",
            "Correct the ZeroDivisionError",
        ),
        ("case_studies/rlhf_roles", 0, "running", "Reward.score", "dstack record"),
    ],
)
def test_the_skill_leads_to_the_cause(name: str, code: int, verdict: str, cause: str, change: str) -> None:
    checked = run(commands()[0], recorded(name))
    document = json.loads(checked.stdout)
    finding = document["findings"][0]
    causes, changes = fields(finding["kind"])

    assert f"| {code} |" in SKILL.read_text()
    assert (checked.exit_code, document["verdict"], document["incomplete"]) == (code, verdict, False)
    assert cause in text_at(finding, causes)
    assert change in text_at(finding, changes)
    assert (finding["confirmed"], finding["assumed"]) == (code == 1, [])
    assert {"last_words", "cures"} <= finding.keys()
    assert {"gaps", "explanation", "outside_ray"} <= document.keys()


def test_a_cure_that_the_skill_names_frees_all() -> None:
    finding = json.loads(run(commands()[0], recorded("two_actors")).stdout)["findings"][0]

    assert finding["cures"][0]["freed"] == finding["cures"][0]["total"]
    assert finding["cures"][0]["is_certain"]


@pytest.mark.parametrize("arguments", commands()[1:], ids=" ".join)
def test_the_further_commands_of_the_skill_print_something(arguments: list[str]) -> None:
    done = run(arguments, RECORDED_CALLS)

    assert done.exit_code == 0, done.output
    assert "pipeline.py" in done.stdout
