"""Actors in Java that wait for each other: their tasks and refs are shown, and their language instead of stacks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import ray

from tests.clusters.dstack_command import Json, settled_check
from tests.clusters.ray_clusters import RayCluster, ray_cluster
from tests.paths import PROGRAMS
from tests.processes import running

PROGRAM = PROGRAMS / "java" / "Restaurant.java"
RAY_JAR = Path(ray.__file__).parent / "jars" / "ray_dist.jar"
OPENED = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in ("java.lang", "java.nio")]
START_S = 120.0

pytestmark = pytest.mark.skipif(shutil.which("javac") is None, reason="needs javac")


@contextmanager
def restaurant(cluster: RayCluster, folder: Path) -> Iterator[None]:
    """The program as a driver of the cluster, until the block ends."""
    subprocess.run(["javac", "-cp", RAY_JAR, "-d", folder, PROGRAM], check=True, timeout=START_S)
    subprocess.run(["jar", "cf", folder / "restaurant.jar", "-C", folder, "."], check=True, timeout=START_S)
    settings = [f"-Dray.address={cluster.address}", f"-Dray.job.code-search-path={folder}"]
    command = ["java", *OPENED, "-cp", f"{RAY_JAR}:{folder}/*", *settings, "Restaurant"]
    with running(command, {**os.environ, **cluster.joining}, folder / "driver.log") as driver:
        driver.wait_for_line("ready", deadline_s=START_S)
        yield


def has_both_calls(document: Json) -> bool:
    """Whether the check has seen both calls run."""
    text = json.dumps(document["findings"])
    return "Restaurant$Waiter.order" in text and "Restaurant$Cook.cook" in text


def test_calls_in_java_are_shown_and_their_language_is_named_instead_of_stacks(tmp_path: Path) -> None:
    with ray_cluster(num_cpus=4, auth="off") as cluster, restaurant(cluster, tmp_path):
        document = settled_check(cluster.address, cluster.environment, has_both_calls)

    assert (document["verdict"], document["incomplete"], document["exit_code"]) == ("blocked", True, 4)
    failures = document["coverage"]["failures"]
    assert {one["reason"] for one in failures} == {
        "it runs Java: its tasks and the refs that it holds were read, and no stack"
    }
    assert len({one["pid"] for one in failures}) == 3
