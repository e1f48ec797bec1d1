"""Actors in Java and C++ that wait for each other: with ``--native`` their lines are shown, else their language."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import ray

from dstack.probes.node.procfs import proc
from tests.clusters.dstack_command import Json, check, settled_check
from tests.clusters.ray_clusters import RayCluster, ray_cluster
from tests.paths import PROGRAMS
from tests.processes import running

RAY = Path(ray.__file__).parent
RAY_JAR = RAY / "jars" / "ray_dist.jar"
RAY_CPP = RAY / "cpp"
OPENED = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in ("java.lang", "java.nio")]
START_S = 120.0

pytestmark = pytest.mark.ray

Command = Sequence[str | Path]


@dataclass(frozen=True)
class Case:
    """A program of two actors that wait for each other: its language and tool, its calls, and where they wait."""

    language: str
    tool: str
    build: Callable[[Path, str], Command]
    calls: tuple[str, str]
    lines: set[tuple[str, int]]


def java(folder: Path, address: str) -> Command:
    """Compiles the program; returns the command that runs it as a driver."""
    run("javac", "-cp", RAY_JAR, "-d", folder, PROGRAMS / "java" / "Restaurant.java")
    run("jar", "cf", folder / "restaurant.jar", "-C", folder, ".")
    log = f"-XX:ErrorFile={folder}/crash.log"  # Ray may crash a JVM when it ends its actor; seen on Ray 2.60
    settings = [f"-Dray.address={address}", f"-Dray.job.code-search-path={folder}", f"-Dray.job.jvm-options.0={log}"]
    return ["java", log, *OPENED, "-cp", f"{RAY_JAR}:{folder}/*", *settings, "Restaurant"]


def cpp(folder: Path, address: str) -> Command:
    """As :func:`java`. Ray's library was built with the old ABI of libstdc++, as manylinux2014 has it."""
    compile = ("g++", "-std=c++17", "-g", "-O1", "-fPIC", "-D_GLIBCXX_USE_CXX11_ABI=0", f"-I{RAY_CPP / 'include'}")
    link = (f"-L{RAY_CPP / 'lib'}", "-lray_api", f"-Wl,-rpath,{RAY_CPP / 'lib'}", "-lpthread")
    program, library = folder / "restaurant", folder / "librestaurant.so"
    run(*compile, "-c", "-o", folder / "restaurant.o", PROGRAMS / "cpp" / "Restaurant.cc")
    run("g++", "-o", program, folder / "restaurant.o", *link)
    run("g++", "-shared", "-o", library, folder / "restaurant.o", *link)
    return [program, f"--ray_address={address}", f"--ray_code_search_path={library}"]


CASES = [
    pytest.param(
        Case(
            language="Java",
            tool="jstack",
            build=java,
            calls=("Restaurant$Waiter.order", "Restaurant$Cook.cook"),
            lines={("Restaurant$Waiter.order", 15), ("Restaurant$Cook.cook", 10)},
        ),
        marks=[pytest.mark.skipif(shutil.which("javac") is None, reason="needs javac"), pytest.mark.exhaustive],
        id="java",
    ),
    pytest.param(
        Case(
            language="C++",
            tool="gdb",
            build=cpp,
            calls=("&Waiter::Order", "&Cook::CookMeal"),
            lines={("Waiter::Order", 36), ("Cook::CookMeal", 35)},
        ),
        marks=[
            pytest.mark.skipif(not shutil.which("g++") or not shutil.which("gdb"), reason="needs g++ and gdb"),
            pytest.mark.exhaustive,
        ],
        id="cpp",
    ),
]


def run(*command: str | Path) -> None:
    subprocess.run(command, check=True, timeout=START_S)


@contextmanager
def restaurant(case: Case, cluster: RayCluster, folder: Path) -> Iterator[None]:
    """The program as a driver of the cluster, until the block ends."""
    command = [str(word) for word in case.build(folder, cluster.address)]
    with running(command, {**os.environ, **cluster.joining}, folder / "driver.log") as driver:
        driver.wait_for_line("ready", deadline_s=START_S)
        yield


@pytest.mark.parametrize("case", CASES)
def test_a_deadlock_is_suspected_from_native_stacks_and_else_the_language_is_named(case: Case, tmp_path: Path) -> None:
    def has_both_calls(document: Json) -> bool:
        text = json.dumps(document["findings"])
        return all(call in text for call in case.calls)

    with ray_cluster(num_cpus=4, auth="off") as cluster, restaurant(case, cluster, tmp_path):
        plain = settled_check(cluster.address, cluster.environment, has_both_calls)
        native = check(cluster.address, cluster.environment, "--native", "--timeout", "100")
        pids = [one["pid"] for one in plain["coverage"]["failures"]]
        left = {(proc.state(pid), proc.tracer(pid)) for pid in pids}

    assert (plain["verdict"], plain["incomplete"], plain["exit_code"]) == ("running", True, 4)
    assert {one["reason"] for one in plain["coverage"]["failures"]} == {
        f"it runs {case.language}, whose stacks are read only with --native"
    }
    assert len(set(pids)) == 3
    assert (native["verdict"], native["exit_code"]) == ("deadlock", 1)
    (finding,) = [one for one in native["findings"] if one["kind"] == "deadlock"]
    assert not finding["confirmed"]
    assert "raise max_concurrency" in finding["advice"]["text"]
    assert "async" not in finding["advice"]["text"]
    assert {(one["function"], one["line"]) for one in finding["members"] if one["line"]} == case.lines
    assert native["coverage"]["access"][case.tool] == 3
    assert left <= {("S", 0), ("R", 0)}
