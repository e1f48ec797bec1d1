"""The files of a program: its script by the command line of a real process, and the user's modules that it imports."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dstack.observed.outlines import ProgramOutline
from dstack.probes.node.outlines import DriverOutlines, outline_of_files, outlines_of_driver
from dstack.probes.node.outlines.program_files import NO_SCRIPT, ProgramFiles, Unread, script_of

READY = "print('ready', flush=True)\ninput()\n"
APP = "import ray\nfrom shop.till import order\nray.init()\nray.get(order.remote())\n" + READY
TILL = "import ray\nfrom .kitchen import cook\n@ray.remote\ndef order():\n    return ray.get(cook.remote())\n"
KITCHEN = "import ray\nimport numpy, json\n@ray.remote\ndef cook(): ...\n"


@contextlib.contextmanager
def running(*arguments: str, cwd: Path, **environment: str) -> Iterator[int]:
    """The pid of a Python that has printed *ready*."""
    with subprocess.Popen(
        [sys.executable, *arguments],
        cwd=cwd,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin
        assert process.stdout
        try:
            assert process.stdout.readline() == "ready\n"
            yield process.pid
        finally:
            process.stdin.close()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a script, a package of which it imports two modules, and a file that nothing imports."""
    (tmp_path / "shop").mkdir()
    texts = {"app.py": READY, "shop/__init__.py": "", "shop/till.py": TILL, "shop/kitchen.py": KITCHEN}
    texts |= {"shop/unused.py": "import ray\n", "shop/__main__.py": READY}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize("arguments", [["app.py"], ["-u", "-W", "ignore", "app.py", "-m", "shop"]])
def test_the_script_of_a_process_is_found_by_its_words(project: Path, arguments: list[str]) -> None:
    with running(*arguments, cwd=project, PYTHONPATH=f"lib:{project}/other") as pid:
        script = script_of(pid)

    assert script.path == f"{project}/app.py"
    assert script.folders == (str(project), f"{project}/lib", f"{project}/other")
    assert script.module == "app"


def test_a_package_that_is_run_has_its_own_name(project: Path) -> None:
    with running("-m", "shop", cwd=project) as pid:
        script = script_of(pid)

    assert (script.path, script.module) == (f"{project}/shop/__main__.py", "shop.__main__")


def test_code_of_a_command_line_has_no_file(project: Path) -> None:
    with running("-c", READY, cwd=project) as pid, pytest.raises(Unread, match=NO_SCRIPT):
        script_of(pid)


def test_a_process_that_has_ended_has_no_script(project: Path) -> None:
    with running("app.py", cwd=project) as pid:
        pass

    outline = outlines_of_driver(pid, "01000000")

    assert (outline.functions, outline.why_partial) == ((), "the command line of the driver could not be read")


def test_the_outline_of_a_driver_has_its_script_and_what_that_imports(project: Path) -> None:
    with running("app.py", cwd=project) as pid:
        (project / "app.py").write_text(APP)  # the process itself needs no Ray
        outline = outlines_of_driver(pid, "01000000")

    names = ["app.py", "shop/__init__.py", "shop/till.py", "shop/kitchen.py"]
    assert sorted(outline.files) == sorted([f"{project}/{name}" for name in names])
    steps = {one.name: [(step.kind, step.name) for step in one.steps] for one in outline.functions}
    assert steps[""] == [("call", "order"), ("wait", "")]
    assert steps["order"] == [("call", "cook"), ("wait", "")]
    assert steps["cook"] == []
    assert (outline.job_id, outline.why_partial) == ("01000000", "")


def test_installed_packages_are_not_read(project: Path) -> None:
    installed = project / "lib" / "python3.11" / "site-packages"
    installed.mkdir(parents=True)
    (installed / "library.py").write_text("import ray\n")
    files = ProgramFiles([str(installed), str(project)])

    files.read([(str(project / "app.py"), "app")])

    assert not [path for path in files.modules if "site-packages" in path]


def test_a_file_that_cannot_be_parsed_is_named_and_the_others_are_read(project: Path) -> None:
    (project / "shop" / "kitchen.py").write_text("def cook(:\n")

    outline = outline_of_files([str(project / "shop" / "till.py")])

    assert outline.why_partial == f"{project}/shop/kitchen.py could not be parsed"
    assert [one.name for one in outline.functions] == ["order"]


def test_more_files_than_are_read_are_said_to_be_there(tmp_path: Path) -> None:
    for number in range(210):
        (tmp_path / f"m{number}.py").write_text(f"import m{number + 1}\n")

    outline = outline_of_files([str(tmp_path / "m0.py")])

    assert len(outline.files) == 200
    assert outline.why_partial == "the program has more files than are read"


def test_a_program_is_read_again_only_if_its_files_change(project: Path) -> None:
    outlines = DriverOutlines()
    with running("app.py", cwd=project) as pid:

        def outline() -> ProgramOutline:
            outlines.begin_snapshot()
            return next(outlines.of_drivers([(pid, "01000000", {f"{project}/app.py"})]))

        first, second = outline(), outline()
        (project / "app.py").write_text(APP)
        third = outline()

    assert second is first
    assert [len(one.files) for one in (first, third)] == [1, 4]
