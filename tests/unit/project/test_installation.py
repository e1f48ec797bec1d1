"""What installs dstack: its requirements, their versions in development, the conda recipe, and the files for GitHub."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import metadata, requires
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dstack.probes.this_host import PYTHONS
from dstack.version import __version__
from tests.paths import ROOT

DISTRIBUTION = "ray-dstack"
REQUIREMENTS = [Requirement(line) for line in requires(DISTRIBUTION) or ()]
UNPINNED = ("ray", "ray-cpp", "torch")
"""Tests need several versions of Ray, and pyproject.toml pins torch."""
ACTION = ROOT / "action" / "action.yml"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").iterdir())


def pins(python: str) -> dict[str, str]:
    """The versions in constraints.txt for a minor version of Python, by name."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    found = [Requirement(line) for line in lines if not line.startswith("#")]
    environment = {"python_version": python, "python_full_version": f"{python}.9", "sys_platform": "linux"}
    used = [one for one in found if one.marker is None or one.marker.evaluate(environment)]
    names = [one.name for one in used]
    assert len(names) == len({*names})
    return {canonicalize_name(one.name): str(one.specifier).removeprefix("==") for one in used}


@pytest.mark.parametrize("minor", range(PYTHONS[0][1], PYTHONS[1][1] + 1))
def test_every_requirement_has_one_version_in_development(minor: int) -> None:
    pinned = pins(f"3.{minor}")

    for requirement in REQUIREMENTS:
        extra = re.search(r"extra == ['\"](\w+)", str(requirement.marker))
        environment = {"python_version": f"3.{minor}", "extra": extra[1] if extra else ""}
        if requirement.name in UNPINNED or (requirement.marker and not requirement.marker.evaluate(environment)):
            continue
        version = pinned.get(canonicalize_name(requirement.name), "none")
        assert version != "none", f"{requirement} has no version in constraints.txt: make lock"
        assert version in requirement.specifier, f"{requirement} excludes {version} of constraints.txt: make lock"


def test_no_version_of_ray_is_fixed() -> None:
    assert not {name for name in pins("3.11") if name.startswith("ray")}


def test_what_is_not_required_on_other_platforms_is_not_needed_for_files() -> None:
    """Every command on a file works as on macOS, and every command on a cluster says that it does not."""
    program = ROOT / "tests" / "versions" / "other_platform.py"
    done = subprocess.run(
        [sys.executable, program], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("FILE: works") == 7
    assert done.stdout.count(": refused") == 9


def test_the_metadata_names_authors_and_places() -> None:
    found = metadata(DISTRIBUTION)

    assert found["Author"] == "The dstack developers"
    assert {text.partition(",")[0] for text in found.get_all("Project-URL", [])} == {"Homepage", "Issues", "Changelog"}


ONLY_ON_PYPI = ("resvg-py",)
"""What a command needs that says so if it is missing."""


def test_the_conda_recipe_requires_what_the_package_requires() -> None:
    recipe: dict[str, Any] = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text())
    python, linux, *others = recipe["requirements"]["run"]
    packages = {name: bounds for name, _, bounds in (text.partition(" ") for text in others)}
    own = [one for one in REQUIREMENTS if not re.search("extra", str(one.marker)) and one.name not in ONLY_ON_PYPI]

    assert recipe["context"] == {"version": __version__, "python_min": ".".join(map(str, PYTHONS[0]))}
    assert (python, linux) == ("python >=${{ python_min }}", "__linux")
    assert packages.keys() == {{"ray": "ray-core"}.get(one.name, one.name) for one in own}
    for one in own:
        bounds = packages[{"ray": "ray-core"}.get(one.name, one.name)]
        assert {*bounds.split(",")} == {str(part) for part in one.specifier}, one


@pytest.mark.parametrize(
    ("kind", "files"), [("vendor.github-workflows", WORKFLOWS), ("vendor.github-actions", [ACTION])]
)
def test_github_would_take_the_files(kind: str, files: list[Path]) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", kind, *map(str, files)]

    done = subprocess.run(command, capture_output=True, text=True, timeout=60)

    assert files
    assert done.returncode == 0, done.stdout


def test_github_would_not_take_a_wrong_action(tmp_path: Path) -> None:
    wrong = tmp_path / "action.yml"
    wrong.write_text(ACTION.read_text().replace("shell: bash", "shell: [bash]"))
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-actions", str(wrong)]

    assert subprocess.run(command, capture_output=True, timeout=60).returncode == 1


def test_the_action_passes_on_the_inputs_that_it_has() -> None:
    """GitHub makes a misspelt input an empty text."""
    action = yaml.safe_load(ACTION.read_text())
    used = set(re.findall(r"inputs\.([\w-]+)", ACTION.read_text()))

    assert used == action["inputs"].keys()
    assert action["runs"]["steps"][1]["env"].keys() == run_action("true").keys()


def run_action(command: str, **variables: str) -> dict[str, str]:
    """The variables of the step of the action that runs a command."""
    return {"RUN": command, "TEST_TIMEOUT": "60", "TIMEOUT": "100", "DIRECTORY": "hangs", **variables}


@pytest.mark.parametrize(("command", "code"), [("true", 0), ("exit 3", 3), ("false | true", 1), ("false\ntrue", 1)])
def test_the_action_ends_as_its_command_ends(command: str, code: int, tmp_path: Path) -> None:
    environment = {**os.environ, **run_action(command)}

    done = subprocess.run([ROOT / "action" / "run.sh"], cwd=tmp_path, env=environment, timeout=60)

    assert done.returncode == code
    assert not [*(tmp_path / "hangs").iterdir()]


def test_the_action_has_pytest_inspect_hanging_tests(tmp_path: Path) -> None:
    code = "import os, shlex; print(shlex.split(os.environ['PYTEST_ADDOPTS']))"
    environment = {**os.environ, **run_action(f'{sys.executable} -c "{code}"'), "PYTEST_ADDOPTS": "-x"}

    done = subprocess.run(
        [ROOT / "action" / "run.sh"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )

    assert done.stdout == f"['-x', '--dstack-timeout=60', '--dstack-dir={tmp_path}/hangs']\n"
