"""The probe's code travels to other nodes by value and needs no installation there."""

import subprocess
import sys
from pathlib import Path

import pytest

from dstack.observed.processes import Frame
from dstack.probes.node_access.answers import unpacked, unpacked_round
from tests.paths import ROOT

DRIVER = """
import sys
import ray.cloudpickle
from dstack.probes.node.probe_actor import ProbeActor
from dstack.probes.node_access.remote_driver import pickle_by_value
pickle_by_value()
sys.stdout.buffer.write(ray.cloudpickle.dumps(ProbeActor))
"""
"""What dstack's driver does."""
ELSEWHERE = """
import os, pickle, sys
sys.modules["dstack"] = sys.modules["msgspec"] = None  # an import fails now
probe = pickle.load(sys.stdin.buffer)()
target = {"worker_id": "w", "pid": os.getppid(), "port": 0, "is_driver": True}
options = {"native": False, "locals": False, "pause": False, "children": False}
options |= {"deadline_s": 20.0}
worker = {"worker_id": "ab" * 28, "ip": "127.0.0.1", "port": 1, "pid": 1}
questions = {"metadata": [], "timeout_s": 20.0, "limit": 1, "details": True, "with_refs": True, "places": 0}
request = {"is_first": True, "workers": [worker], "questions": questions, "targets": [target], "options": options}
request["outlines"] = {"w": "01000000"}
paced = {"rate_hz": 50.0, "seconds": 0.5, "idle": True, "gil": False, "native": False, "is_last": True}
for part in (probe.sample(request), probe.record([target], paced)):
    sys.stdout.buffer.write(len(part).to_bytes(4, "big") + part)
"""


ON_ANOTHER_MACHINE = """
import os, pickle, sys
sys.modules["dstack"] = sys.modules["msgspec"] = None
here = os.uname()
os.uname = lambda: os.uname_result((*here[:4], "another machine"))
os.environ["PATH"], sys.executable = "", "/nowhere/python"
print(pickle.load(sys.stdin.buffer)().needs_pyspy_for())
"""


@pytest.fixture(scope="module")
def probe() -> bytes:
    return subprocess.run([sys.executable, "-c", DRIVER], cwd=ROOT, capture_output=True, check=True).stdout


def test_the_machine_is_that_of_the_node_and_not_of_the_driver(probe: bytes, tmp_path: Path) -> None:
    command = [sys.executable, "-c", ON_ANOTHER_MACHINE]
    there = subprocess.run(command, input=probe, cwd=tmp_path, capture_output=True, check=True)

    assert there.stdout == b"another machine\n"


def test_a_probe_runs_by_value_without_an_installation(probe: bytes, tmp_path: Path) -> None:
    there = subprocess.run(
        [sys.executable, "-c", ELSEWHERE], input=probe, cwd=tmp_path, capture_output=True, check=False
    )

    assert there.returncode == 0, there.stderr.decode()
    length = int.from_bytes(there.stdout[:4], "big")
    answer, found = unpacked(there.stdout[4 : 4 + length]), unpacked_round(there.stdout[8 + length :])
    assert found.coverage.wanted == 25
    assert found.ranks.keys() == {"w"}
    assert found.failures == ()
    process = answer.processes["w"]
    assert {type(frame) for frame in answer.frames} == {Frame}
    assert answer.stacks[process.threads[0].stack]
    assert answer.host is not None
    assert answer.host.memory_total_bytes
    (outline,) = answer.outlines
    assert __file__ in outline.files  # it is in the stack of this process
    assert "test_a_probe_runs_by_value_without_an_installation" in [one.name for one in outline.functions]
    assert [failure.cause for failure in answer.failures] == ["unreachable"]  # it has asked the core worker
