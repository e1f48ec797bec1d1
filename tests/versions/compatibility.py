"""Run the tests on other versions of Python and Ray: ``python -m tests.versions.compatibility [RAY...]``.

Every pair below has its own virtual environment in ``.venv-compatibility``. Its Python must be on the PATH or under
pyenv. The fallback for 3.14 and 3.15 is a Debian tree (:mod:`~tests.versions.debian_tree`), for root with mmdebstrap.
Without these the pair is skipped, and the summary gives the reason.

Two pairs run in parallel, and each prints its output at its end. The exit code is 1 if tests fail or an interpreter is
missing. With ``--smoke`` only a few tests run, on the oldest supported Ray, in 2 to 3 minutes; with ``--prepare`` none,
but their environment is made.

With versions of Ray, such as ``2.55.1``, ``newest`` or ``nightly``, these few tests run on them instead of the pairs.
Then, and after the pairs, ``dstack doctor --pieces`` lists what dstack reads of these, or of newest and nightly.
A nightly wheel is not in the package index: where it cannot be had, the summary says so.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tests.paths import ROOT
from tests.versions.debian_tree import DebianTree

READING = (
    "tests/unit/probes/node/test_thread_calls.py",
    "tests/unit/probes/node/test_spans.py",
    "tests/unit/test_spans.py",
    "tests/unit/probes/node/procfs/test_proc.py",
    "tests/unit/probes/node/cpython/test_memory.py",
    "tests/unit/probes/node/cpython/test_objects.py",
    "tests/unit/probes/node/cpython/test_code_objects.py",
    "tests/unit/probes/node/cpython/test_memory_frames.py",
    "tests/unit/probes/node/cpython/test_layouts.py",
    "tests/unit/probes/node/cpython/test_hashes.py",
    "tests/unit/probes/node/cpython/test_python_process.py",
    "tests/unit/probes/node/cpython/test_values.py",
    "tests/unit/probes/node/waits/test_executors.py",
    "tests/unit/probes/node/waits/test_waits_in_hostile_memory.py",
    "tests/unit/probes/node/cpython/test_debug_offsets.py",
    "tests/unit/probes/node/cpython/test_self_check.py",
    "tests/unit/probes/node/asyncio/test_event_loops.py",
    "tests/unit/probes/node/outlines",
    "tests/unit/probes/node/cpython/test_objects_in_hostile_memory.py",
    "tests/unit/probes/node/asyncio/test_coroutines_in_hostile_memory.py",
    "tests/unit/report/test_text.py",
    "tests/unit/files/test_snapshot_file.py",
    "tests/unit/probes/node/test_probe_code_by_value.py",
    "tests/integration/reading/test_foreign_pythons.py",
    "tests/integration/waits/test_awaits.py",
    "tests/integration/waits/test_coroutines.py",
    "tests/integration/waits/test_thread_waits.py",
    "tests/integration/waits/test_ray_waits.py",
    "tests/integration/reading/test_process_samples.py",
    "tests/integration/reading/test_recorded_processes.py",
    "tests/integration/reading/test_reused_readings.py",
    "tests/integration/reading/test_spans.py",
    "tests/integration/reading/test_reader_against_pyspy.py",
    "tests/integration/reading/test_reader_bounds.py",
    "tests/integration/reading/test_reader_side_effects.py",
    "tests/integration/commands/test_predict.py",
    "tests/integration/waits/test_actor_slots.py",
    "tests/integration/test_examples.py",
    "tests/integration/reading/another_environment.py",
)
"""The tests of the reader: Python's versions differ in what is read, not in the analysis."""

READING_ALONE = (
    "tests/unit/probes/node/asyncio",
    "tests/unit/probes/node/cpython",
    "tests/unit/probes/node/outlines",
    "tests/unit/probes/node/procfs",
    "tests/unit/probes/node/waits",
    "tests/unit/probes/node/test_spans.py",
    "tests/unit/probes/node/test_system_calls.py",
    "tests/unit/probes/node/test_thread_calls.py",
    "tests/integration/waits/test_coroutines.py",
    "tests/integration/waits/test_reachable_objects.py",
    "tests/integration/waits/test_thread_waits.py",
    "tests/integration/reading/test_recorded_processes.py",
    "tests/integration/reading/test_spans.py",
)
ALONE = (
    "anyio greenlet hypothesis msgspec networkx psutil py-spy pyelftools pytest pytest-rerunfailures pytest-timeout "
    "pytest-xdist rustworkx uvloop"
)
"""The tests of the reader that need no Ray, and what they need instead."""


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


@dataclass(frozen=True, slots=True)
class Pair:
    """A version of Python and of Ray, the tests to run, and additional packages; without Ray, only these."""

    python: str
    ray: str
    tests: tuple[str, ...]
    packages: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"Python {self.python}, {f'Ray {self.ray}' if self.ray else 'without Ray'}"

    @property
    def requirement(self) -> str:
        """What to install."""
        tag = f"cp{self.python.replace('.', '')}"
        if self.ray == NIGHTLY:
            return f"ray @ {WHEELS}/ray-3.0.0.dev0-{tag}-{tag}-manylinux2014_x86_64.whl"
        return "ray" if self.ray == NEWEST else f"ray=={self.ray}"


PAIRS = (
    Pair("3.11", "2.46.0", ("tests/integration",)),
    Pair("3.10", "2.60.0", READING),
    Pair("3.12", "2.60.0", READING, ("uvloop",)),  # Ray's async actors use it if it is installed
    Pair("3.13", "2.60.0", READING),
    Pair("3.14", "2.60.0", READING),
    Pair("3.15", "", READING_ALONE, tuple(ALONE.split())),  # there is no wheel of Ray for it
)
"""The longest first. ``make test`` covers the Python that runs it, and the newest Ray."""

SMOKE = (
    Pair(
        "3.11",
        "2.46.0",
        (
            "tests/integration/waits/test_ray_waits.py",
            "tests/integration/reading/test_process_samples.py",
            "tests/integration/reading/test_task_history.py",
            "tests/integration/reading/another_ray.py",
            *(
                f"tests/integration/test_examples.py::test_a_program_gets_its_expected_verdict[{name}]"
                for name in TEN_EXAMPLES
            ),
        ),
    ),
)
"""The pair for CI: the oldest supported Ray can be installed and read."""

NEWEST, NIGHTLY = "newest", "nightly"
WHEELS = "https://s3-us-west-2.amazonaws.com/ray-wheels/latest"
"""Where Ray publishes the wheels of its main branch."""
NOWHERE = "127.0.0.1:1"

CLUSTER = "PYTHON_OF_CLUSTER"
"""The variable with the cluster's Python for tests that read a cluster of another version."""

FROM_DEBIAN = ("3.14", "3.15")
"""Versions with a Debian tree as the fallback, if they are neither on the PATH nor under pyenv."""
PASSED, FAILED = "passed", "FAILED"

DIRECTORY = ROOT / ".venv-compatibility"


def main() -> None:
    pairs: tuple[Pair, ...]
    pairs, workers = (SMOKE, 2) if "--smoke" in sys.argv else (PAIRS, 1)
    versions = [word for word in sys.argv[1:] if not word.startswith("-")]
    if versions:
        pairs = tuple(replace(SMOKE[0], ray=version) for version in versions)
    if "--prepare" in sys.argv:
        pairs = tuple(replace(pair, tests=()) for pair in pairs)
    make_trees(pairs)
    with ThreadPoolExecutor(2) as side_by_side:
        ends = list(side_by_side.map(partial(outcome, workers=workers), pairs))
    if "--smoke" not in sys.argv:
        for version in versions or (NEWEST, NIGHTLY):
            print_pieces(replace(SMOKE[0], ray=version, tests=()))
    for pair, end in zip(pairs, ends, strict=True):
        print(f"{pair}: {end}")
    sys.exit(any(end.startswith(FAILED) for end in ends))


def print_pieces(pair: Pair) -> None:
    """Print what dstack reads of a Ray, piece by piece, and which pieces it does not have."""
    end = outcome(pair, 1)
    if end != PASSED:
        print(f"{pair}: its pieces are not checked: {end}")
        return
    command = [str(venv_of(pair) / "bin/python"), "-m", "dstack", "doctor", "--pieces", "--address", NOWHERE]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)  # without a cluster
    print(f"{pair}:\n{done.stdout}", flush=True)


def venv_of(pair: Pair) -> Path:
    """The virtual environment of a pair."""
    return DIRECTORY / f"python{pair.python}-ray{pair.ray}"


def make_trees(pairs: Iterable[Pair]) -> None:
    """Make the Debian trees before any test runs: each Python also reads processes of the others."""
    missing = [pair.python for pair in pairs if pair.python in FROM_DEBIAN and find(pair.python) is None]
    for python in [] if DebianTree.missing() else missing:
        with contextlib.suppress(subprocess.CalledProcessError):  # the outcome of the pair says so
            debian_tree(python).make()


def outcome(pair: Pair, workers: int) -> str:
    """``PASSED``, ``FAILED``, or ``SKIPPED`` with the reason."""
    python = find(pair.python)
    tree = debian_tree(pair.python) if python is None and pair.python in FROM_DEBIAN else None
    if python is None:
        reason = f"there is no Python {pair.python} on the PATH or under pyenv"
        missing = DebianTree.missing() if tree else None
        if missing:
            return f"SKIPPED: {reason}, and {missing}"
        if tree is None:
            return f"{FAILED}: {reason}"
    try:
        return PASSED if passes(pair, workers, python or f"python{pair.python}", tree) else FAILED
    except subprocess.CalledProcessError as error:
        return f"{FAILED}: {shlex.join(error.cmd[-6:])} ended with {error.returncode}"


def passes(pair: Pair, workers: int, python: str, tree: DebianTree | None) -> bool:
    """Make the pair's environment and its Debian tree if they are missing, and run its tests, if it has any."""
    variables = {CLUSTER: sys.executable} if pair.ray else {"PYTHONPATH": str(ROOT)}
    venv = venv_of(pair)
    own = str(venv / "bin/python")

    def command(*words: str) -> list[str]:
        path = f"{venv / 'bin'}:/usr/sbin:/usr/bin:/sbin:/bin"  # Ray runs the pip on the PATH
        in_tree = {**variables, "PATH": path, "EFFORT": os.environ.get("EFFORT", "quick")}
        return tree.command(*words, directory=ROOT, environment=in_tree) if tree else list(words)

    if tree:
        tree.make()
    if not (venv / "ready").exists():
        run(*command(python, "-m", "venv", "--clear", str(venv)))
        packages = ("-e", f"{ROOT}[dev]", pair.requirement) if pair.ray else ()
        pinned = () if pair.ray in (NEWEST, NIGHTLY) else ("-c", str(ROOT / "constraints.txt"))
        run(*command(own, "-m", "pip", "install", "-qq", *pinned, *packages, *pair.packages))
        (venv / "ready").touch()
    if not pair.tests:
        return True
    options = ("-q", "-p", "no:cacheprovider", "-m", "not libraries", f"--numprocesses={workers}")
    test = command(own, "-m", "pytest", *options, *pair.tests)
    environment = {**os.environ, **variables}
    ended = subprocess.run(test, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    print(f"{pair}:\n{ended.stdout}", flush=True)
    return ended.returncode == 0


def debian_tree(python: str) -> DebianTree:
    """The Debian tree with this Python, which shares the checkout and pyenv's Pythons."""
    return DebianTree(DIRECTORY / f"debian-python{python}", python, (ROOT, Path.home() / ".pyenv"))


def find(python: str) -> str | None:
    """An interpreter of this minor version."""
    under_pyenv = sorted(Path.home().glob(f".pyenv/versions/{python}.*/bin/python"))
    return str(under_pyenv[-1]) if under_pyenv else shutil.which(f"python{python}")


def command_of(python: str) -> list[str] | None:
    """The command of an interpreter of this minor version, also in an existing Debian tree."""
    interpreter = find(python)
    if interpreter:
        return [interpreter]
    if python not in FROM_DEBIAN or DebianTree.missing() or not debian_tree(python).is_made:
        return None
    variables = {"PYTHONPATH": str(ROOT)}  # those of a test do not get into the tree
    return debian_tree(python).command(f"python{python}", directory=ROOT, environment=variables)


def run(*command: str) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
