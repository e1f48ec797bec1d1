"""The Ray of a raylet on this host: a program of that name in the place of one, and the messages of this Ray."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dstack.probes.connection import ray_stubs
from dstack.probes.connection.cluster_ray import ClusterStubs, beside_checks, own_version, python_of, stubs_of
from dstack.probes.node.core_worker_calls import load_modules

FOLDER = Path(ray_stubs.common_pb2.__file__).parents[2]
MINOR = f"python{sys.version_info.major}.{sys.version_info.minor}"
OTHER = "2.49.9"


@contextmanager
def raylet(folder: Path, version: str, python: str = sys.executable, minor: str = MINOR) -> Iterator[None]:
    """A Ray of this version in a new folder, and a process that runs its raylet."""
    ray = folder / "lib" / minor / "site-packages" / "ray"
    program = ray / "core" / "src" / "ray" / "raylet" / "raylet"
    program.parent.mkdir(parents=True)
    (ray / "_version.py").write_text(f'version = "{version}"\n')
    (ray / "core" / "generated").symlink_to(FOLDER / "core" / "generated")
    program.symlink_to(sys.executable)
    wait = "print(flush=True); input()"
    command = [str(program), "-c", wait, f"--python_worker_command={python} worker.py --gcs-address=10.0.0.1:6379"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        yield
        process.kill()


def test_the_messages_of_a_folder_are_those_of_its_modules() -> None:
    made = load_modules(lambda: ClusterStubs(FOLDER))
    own = load_modules(lambda: ray_stubs)

    assert made.protocol.lost == own.protocol.lost
    assert made.common.DESCRIPTOR.pool is not own.common.DESCRIPTOR.pool
    numbers = [{one.name: one.number for one in of.common.CoreWorkerStats.DESCRIPTOR.fields} for of in (made, own)]
    assert numbers[0] == numbers[1]
    assert made.common.TaskStatus.items() == own.common.TaskStatus.items()
    reply = own.core_worker.GetCoreWorkerStatsReply(tasks_total=7, running_task_ids=[b"1", b"2"])
    reply.core_worker_stats.used_resources["CPU"].resource_slots.add(allocation=0.5)
    read = made.core_worker.GetCoreWorkerStatsReply.FromString(reply.SerializeToString())
    assert str(read) == str(reply)


def test_a_stub_has_the_methods_of_its_service() -> None:
    called: list[str] = []

    class Channel:
        def unary_unary(self, name: str, **_: object) -> None:
            called.append(name)

    ClusterStubs(FOLDER).core_worker_pb2_grpc.CoreWorkerServiceStub(Channel()).GetCoreWorkerStats  # noqa: B018

    assert called == ["/ray.rpc.CoreWorkerService/GetCoreWorkerStats"]


def test_what_a_module_has_not_is_no_attribute() -> None:
    stubs = ClusterStubs(FOLDER)

    for module, name in ((stubs, "common"), (stubs.common_pb2, "NoSuchMessage")):
        with pytest.raises(AttributeError):
            getattr(module, name)
    with pytest.raises(ImportError, match="has no descriptors"):
        stubs.no_such_pb2  # noqa: B018


def test_without_a_raylet_of_that_version_dstack_uses_its_own_ray() -> None:
    assert stubs_of(OTHER) is ray_stubs
    assert python_of(OTHER) is None
    (check,) = beside_checks(OTHER, has_other_nodes=False)
    assert check.level == "limit"
    assert "no raylet of this cluster runs here" in check.text


def test_the_ray_of_a_raylet_here_is_used(tmp_path: Path) -> None:
    with raylet(tmp_path, OTHER):
        assert isinstance(stubs_of(OTHER), ClusterStubs)
        assert not load_modules(lambda: stubs_of(OTHER)).protocol.lost
        assert python_of(OTHER) == sys.executable
        (check,) = beside_checks(OTHER, has_other_nodes=True)
        assert (check.level, check.text.rpartition(": ")[2]) == ("ok", sys.executable)


def test_of_the_same_version_dstack_uses_its_own(tmp_path: Path) -> None:
    version = own_version() or ""
    with raylet(tmp_path, version):
        assert stubs_of(version) is ray_stubs
        assert python_of(version) is None
        assert beside_checks(version, has_other_nodes=True) == []


@pytest.mark.parametrize("what", ["user", "Python", "absent"])
def test_a_python_of_another_user_or_version_is_not_run(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if what == "user":
        monkeypatch.setattr("os.geteuid", lambda: 12345)
    minor = "python3.9" if what == "Python" else MINOR
    with raylet(tmp_path, OTHER, "/no/such/python" if what == "absent" else sys.executable, minor):
        assert isinstance(stubs_of(OTHER), ClusterStubs)
        assert python_of(OTHER) is None
        levels = [beside_checks(OTHER, has_other_nodes=others)[0].level for others in (True, False)]
        assert levels == ["limit", "ok"]
