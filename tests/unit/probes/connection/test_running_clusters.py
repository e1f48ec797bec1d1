"""Clusters of this machine, found by command lines as Ray finds them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dstack.probes.connection.running_clusters import gcs_addresses, latest_address

RAYS_OWN = """
import json, os, sys
from ray._private.services import find_bootstrap_address, find_gcs_addresses
latest = []
for variables in json.loads(sys.argv[1]):
    os.environ.update(variables)
    latest.append(find_bootstrap_address(None))
    for name in variables:
        os.environ.pop(name)
print(json.dumps([sorted(find_gcs_addresses()), latest]))
"""
"""The addresses that Ray finds, and the latest one in each environment."""
SLEEPER = "import sys; print(flush=True); sys.stdin.read()"


@contextmanager
def process(program: str, *arguments: str) -> Iterator[None]:
    """A process of that name with these arguments."""
    command = [program, "-c", SLEEPER, *arguments]
    with subprocess.Popen(command, executable=sys.executable, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as one:
        assert one.stdin is not None
        assert one.stdout is not None
        one.stdout.readline()
        yield
        one.stdin.close()


def rays_own(*environments: dict[str, str]) -> tuple[list[str], list[str | None]]:
    command = [sys.executable, "-c", RAYS_OWN, json.dumps(environments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    addresses, latest = json.loads(done.stdout)
    return addresses, latest


def test_raylets_name_their_gcs() -> None:
    with (
        process("/opt/ray/raylet", "--port=1", "--gcs-address=192.0.2.91:6379"),
        process("raylet", "words in one --gcs-address=[2001:db8::91]:6379 argument"),
        process("raylet", "--gcs-address=", "--gcs-address=None"),
        process("/opt/raylet/python", "--gcs-address=192.0.2.92:6379"),
    ):
        here, rays = gcs_addresses(), rays_own()[0]

    made_up = {"192.0.2.91:6379", "[2001:db8::91]:6379", "192.0.2.92:6379", "", "None"}
    assert made_up & here == made_up.intersection(rays) == {"192.0.2.91:6379", "[2001:db8::91]:6379"}


def test_the_latest_cluster_is_the_one_noted_by_ray_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.delenv("TMPDIR", raising=False)
    for name in ("ray", "system", "nothing"):
        (tmp_path / name / "ray").mkdir(parents=True)
    (tmp_path / "ray" / "ray" / "ray_current_cluster").write_text("192.0.2.91:6379\n")
    (tmp_path / "system" / "ray" / "ray_current_cluster").write_text("192.0.2.92:6379")
    rays, systems, nothing = (str(tmp_path / name) for name in ("ray", "system", "nothing"))
    environments = (
        {"RAY_TMPDIR": rays, "TMPDIR": systems},
        {"TMPDIR": systems},
        {"RAY_TMPDIR": nothing, "TMPDIR": systems},
    )

    assert [under(variables) for variables in environments] == rays_own(*environments)[1]
    assert [under(variables) for variables in environments] == ["192.0.2.91:6379", "192.0.2.92:6379", None]


def under(variables: dict[str, str]) -> str | None:
    """The latest address in an environment."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        return latest_address()
