"""Runs the tests on real Ray and real processes with other versions: ``python tests/compatibility.py [--smoke]``.

Every pair below gets a virtual environment of its own in ``.venv-compatibility``, made by that Python, which must be on
the PATH or under pyenv. Two run side by side, each prints when it is done. Ends with 1 where tests fail or an
interpreter is missing. With ``--smoke`` only a few tests run, on the oldest supported Ray, which takes 2 to 3 minutes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

READING = (
    "tests/unit/test_blocked_call.py",
    "tests/unit/test_procfs.py",
    "tests/unit/test_memory.py",
    "tests/unit/test_objects.py",
    "tests/unit/test_code_objects.py",
    "tests/unit/test_frames.py",
    "tests/unit/test_saved_layouts.py",
    "tests/unit/test_executors.py",
    "tests/unit/test_waits_in_hostile_memory.py",
    "tests/unit/test_report.py",
    "tests/unit/test_snapshot_file.py",
    "tests/unit/test_probe_code_by_value.py",
    "tests/integration/test_foreign_pythons.py",
    "tests/integration/test_awaits.py",
    "tests/integration/test_coroutines.py",
    "tests/integration/test_waits_in_process.py",
    "tests/integration/test_reading.py",
    "tests/integration/test_slots.py",
    "tests/integration/test_examples.py",
    "tests/integration/another_environment.py",
)
"""What differs between versions of Python is what is read, not what is concluded from it."""


TEN_EXAMPLES = (
    "two_actors",
    "ring_of_five",
    "argument_never_comes",
    "worker_tree",
    "hangs/all_threads_call_home",
    "hangs/future_in_an_actor",
    "hangs/removed_placement_group",
    "hangs/sync_get_in_async_method",
    "look_alikes/awaited_own_method",
    "look_alikes/retries",
)


class Pair(NamedTuple):
    """A Python and a Ray, the tests that run there, and what else is installed."""

    python: str
    ray: str
    tests: tuple[str, ...]
    besides: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"Python {self.python}, Ray {self.ray}"


PAIRS = (
    Pair("3.11", "2.46.0", ("tests/integration",)),
    Pair("3.10", "2.60.0", READING),
    Pair("3.12", "2.60.0", READING, ("uvloop",)),  # where it is installed, Ray's async actors use it
    Pair("3.13", "2.60.0", READING),
)
"""The longest first. All tests run on the Python that starts them, and the newest Ray."""

SMOKE = (
    Pair(
        "3.11",
        "2.46.0",
        (
            "tests/integration/test_reading.py",
            *(
                f"tests/integration/test_examples.py::test_a_program_is_judged_as_it_expects[{name}]"
                for name in TEN_EXAMPLES
            ),
        ),
    ),
)
"""What shows in CI that the oldest supported Ray can be installed and read."""

CLUSTER = "PYTHON_OF_CLUSTER"
"""The variable that names the Python of the cluster for those tests that look at one of another version."""

ROOT = Path(__file__).resolve().parent.parent
DIRECTORY = ROOT / ".venv-compatibility"


def main() -> None:
    pairs, workers = (SMOKE, 2) if sys.argv[1:] == ["--smoke"] else (PAIRS, 1)
    with ThreadPoolExecutor(2) as side_by_side:
        passed = list(side_by_side.map(partial(passes, workers=workers), pairs))
    for pair, it_passed in zip(pairs, passed, strict=True):
        print(f"{pair}: {'passed' if it_passed else 'FAILED'}")
    sys.exit(not all(passed))


def passes(pair: Pair, workers: int) -> bool:
    interpreter = find(pair.python)
    if interpreter is None:
        print(f"There is no Python {pair.python} on the PATH or under pyenv.", file=sys.stderr)
        return False
    venv = DIRECTORY / f"python{pair.python}-ray{pair.ray}"
    if not (venv / "ready").exists():
        run(interpreter, "-m", "venv", "--clear", str(venv))
        packages = ("-e", f"{ROOT}[dev]", f"ray=={pair.ray}", *pair.besides)
        run(str(venv / "bin/python"), "-m", "pip", "install", "--quiet", *packages)
        (venv / "ready").touch()
    options = ("-q", "-p", "no:cacheprovider", f"--numprocesses={workers}")
    command = [str(venv / "bin/python"), "-m", "pytest", *options, *pair.tests]
    environment = {**os.environ, CLUSTER: sys.executable}
    ended = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    print(f"{pair}:\n{ended.stdout}", flush=True)
    return ended.returncode == 0


def find(python: str) -> str | None:
    """An interpreter of this minor version."""
    under_pyenv = sorted(Path.home().glob(f".pyenv/versions/{python}.*/bin/python"))
    return str(under_pyenv[-1]) if under_pyenv else shutil.which(f"python{python}")


def run(*command: str) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
