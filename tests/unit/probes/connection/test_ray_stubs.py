"""Ray's generated modules without Ray, and the ways back to Ray's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ALL = ("autoscaler", "common", "core_worker", "gcs", "gcs_service", "reporter")
"""What dstack uses; all but two have a service."""
NAMES = [f"{name}_pb2" for name in ALL] + [f"{name}_pb2_grpc" for name in ALL if name not in ("common", "gcs")]


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def homes(before: str) -> set[str]:
    """The packages of the modules that a fresh process gets after it has run ``before``."""
    program = f"""{before}
from dstack.probes.connection import ray_stubs
print(*{{getattr(ray_stubs, name).__name__.rpartition('.')[0] for name in {NAMES}}})
"""
    return set(run(program).split())


def test_modules_come_without_ray() -> None:
    assert homes("pass") == {"dstack.probes.connection.ray_stubs"}
    assert run(
        "import sys; from dstack.probes.connection.ray_stubs import gcs_service_pb2_grpc; print('ray' in sys.modules)"
    ) == ("False")


def test_modules_of_a_loaded_ray_are_used() -> None:
    assert homes("import ray") == {"ray.core.generated"}


@pytest.mark.parametrize("content", ["raise TypeError('duplicate symbol')", None])
def test_ray_is_loaded_if_its_modules_cannot_be_loaded_alone(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        for name in NAMES:
            (tmp_path / f"{name}.py").write_text(content)

    assert homes(f"from dstack.probes.connection import ray_stubs; ray_stubs.__path__ = [{str(tmp_path)!r}]") == {
        "ray.core.generated"
    }


def test_messages_of_both_imports_are_of_the_same_classes() -> None:
    program = """
from dstack.probes.connection.ray_stubs import gcs_pb2, gcs_service_pb2
import ray
from ray.core.generated import gcs_pb2 as real, gcs_service_pb2 as real_service
assert gcs_pb2 is not real
assert gcs_pb2.GcsNodeInfo is real.GcsNodeInfo
assert type(real_service.GetAllNodeInfoReply().node_info_list.add()) is gcs_pb2.GcsNodeInfo
print(ray.__version__)
"""
    assert run(program)


def test_other_names_are_unknown() -> None:
    with pytest.raises(ImportError, match="cannot import name 'services'"):
        exec("from dstack.probes.connection.ray_stubs import services")
