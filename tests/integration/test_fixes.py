"""A fix or cure of a report, applied to the example that it is about, lets the example run to its end on real Ray.

With a change that a list of cures calls not enough, the example still hangs.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.clusters.ray_clusters import own_environment
from tests.examples.applied_cures import CURED, MORE, NOT_ENOUGH
from tests.examples.applied_fixes import APPLIED, Applied
from tests.processes import running

pytestmark = pytest.mark.ray

ENDS_S = 240.0
"""Deadline for an example, which starts its own cluster, to end: ten times what is usual."""
HANGS_S = 20.0
"""How long an example is watched that is expected to hang, after it is ready."""


def marks(applied: Applied) -> list[pytest.MarkDecorator]:
    """Most run by `make test-all`, and those that need Ray's libraries by `make libraries`."""
    if applied.needs_libraries:
        return [pytest.mark.libraries, pytest.mark.exhaustive]
    return [] if applied.is_quick else [pytest.mark.exhaustive]


@pytest.mark.parametrize(
    "applied",
    [pytest.param(one, id=f"{one.example}: {one.words}", marks=marks(one)) for one in (*APPLIED, *CURED, *MORE)],
)
def test_an_example_ends_with_its_fix(applied: Applied, tmp_path: Path) -> None:
    program = applied.write(tmp_path)

    with own_environment() as environment:
        ended = subprocess.run(
            [sys.executable, str(program)], env=environment, timeout=ENDS_S, capture_output=True, text=True, check=False
        )

    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.exhaustive
@pytest.mark.parametrize("applied", NOT_ENOUGH, ids=lambda one: f"{one.example}: {one.words}")
def test_an_example_hangs_with_a_change_that_is_not_enough(applied: Applied, tmp_path: Path) -> None:
    program = applied.write(tmp_path)

    command = [sys.executable, str(program)]
    with own_environment() as environment, running(command, environment, tmp_path / "log") as child:
        child.wait_for_line("ready", deadline_s=ENDS_S)
        with pytest.raises(subprocess.TimeoutExpired):
            child.process.wait(HANGS_S)
