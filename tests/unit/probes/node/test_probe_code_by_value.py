"""The probe's code travels to other nodes by value and needs no installation there."""

import subprocess
import sys
from pathlib import Path

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
questions = {"metadata": [], "timeout_s": 20.0, "limit": 1, "details": True, "with_refs": True}
request = {"is_first": True, "workers": [worker], "questions": questions, "targets": [target], "options": options}
paced = {"rate_hz": 50.0, "seconds": 0.5, "idle": True, "gil": False, "native": False, "is_last": True}
for part in (probe.sample(request), probe.record([target], paced)):
    sys.stdout.buffer.write(len(part).to_bytes(4, "big") + part)
"""


def test_a_probe_runs_by_value_without_an_installation(tmp_path: Path) -> None:
    probe = subprocess.run([sys.executable, "-c", DRIVER], cwd=ROOT, capture_output=True, check=True).stdout

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
    assert [failure.cause for failure in answer.failures] == ["unreachable"]  # it has asked the core worker
