"""dstack beside clusters that run another Ray: ``python -m tests.versions.beside``.

Each Ray has an environment in ``.venv-compatibility``. A cluster of each runs a deadlock on two hosts, or on this one
where no hosts can be made, and dstack inspects it with the newest one; that of the newest one is inspected with each.
The output is the table of docs/compatibility.md. The exit code is 1 if a pair does not work.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.clusters.ray_clusters import run_example
from tests.hosts.hosts import Hosts
from tests.paths import ROOT

RAYS = ("2.46.0", "2.52.1", "2.55.1", "2.60.0")
PAIRS = (*((ray, RAYS[-1]) for ray in RAYS), *((RAYS[-1], ray) for ray in RAYS[:-1]))
"""The Ray of the cluster, and the one beside dstack."""
COMMANDS = ("check --json", "snapshot -o -", "timeline", "doctor")
DIRECTORY = ROOT / ".venv-compatibility"
Run = Callable[[list[str]], subprocess.CompletedProcess[str]]


def main() -> None:
    if len(sys.argv) > 1:
        print_rows(sys.argv[1], sys.argv[2:])
        return
    for ray in RAYS:
        make_environment(ray)
    clusters = {ray: [beside for cluster, beside in PAIRS if cluster == ray] for ray in RAYS}
    codes = [
        subprocess.run([python_of(ray), "-m", "tests.versions.beside", ray, *besides], cwd=ROOT, check=False).returncode
        for ray, besides in clusters.items()
    ]
    sys.exit(any(codes))


def print_rows(ray: str, besides: list[str]) -> None:
    """Run a cluster with this interpreter, whose Ray it is, and dstack beside it; a row for each of ``besides``."""
    with cluster() as (run, where):
        rows = [(beside, failures(run, beside)) for beside in besides]
    for beside, failed in rows:
        print(f"| {ray} | {beside} | {'; '.join(failed) or f'works on {where}'} |", flush=True)
    sys.exit(any(failed for _, failed in rows))


@contextmanager
def cluster() -> Iterator[tuple[Run, str]]:
    """A cluster with a deadlock, as a function that runs a command of dstack on it, and where it is."""
    if Hosts.unavailable() is None:
        with Hosts(2) as hosts, hosts.run_example("two_actors", on=2):
            address = hosts.address
            yield lambda command: hosts.exec(1, [*command, "--address", address], PYTHONPATH=str(ROOT)), "two hosts"
        return
    with run_example("two_actors") as example:
        environment, address = {**example.environment, "PYTHONPATH": str(ROOT)}, example.address
        yield lambda command: run_here([*command, "--address", address], environment), "one host"


def run_here(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def failures(run: Run, beside: str) -> list[str]:
    """What does not work with this Ray beside dstack."""
    done = {words: run([python_of(beside), "-m", "dstack", *words.split()]) for words in COMMANDS}
    check, snapshot, timeline, doctor = done.values()
    failed = [f"{words}: {one.stderr.strip()}" for words, one in done.items() if one.returncode not in (0, 1)]
    if not failed:
        document = json.loads(check.stdout)
        failed += [one["reason"] for one in document["coverage"]["failures"]]
        verdict, history = document["verdict"], json.loads(snapshot.stdout)["history"]
        failed += [f"the verdict is {verdict}"] * (verdict != "deadlock")
        failed += ["no history"] * (not history or "can never proceed" not in timeline.stdout)
        failed += [f"doctor: {doctor.stdout}"] * doctor.returncode
    return failed


def python_of(ray: str) -> str:
    return str(DIRECTORY / f"beside-ray{ray}" / "bin" / "python")


def make_environment(ray: str) -> None:
    """An environment with dstack's requirements and this Ray."""
    ready = Path(python_of(ray)).parents[1] / "ready"
    if not ready.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(ready.parent)], check=True)
        packages = ["-c", str(ROOT / "constraints.txt"), "-e", str(ROOT), f"ray=={ray}"]
        subprocess.run([python_of(ray), "-m", "pip", "install", "-qq", *packages], check=True)
        ready.touch()


if __name__ == "__main__":
    main()
