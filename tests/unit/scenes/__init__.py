"""Small clusters described line by line, and sampled once or twice: see :mod:`tests.unit.scenes.scene`."""

from tests.unit.scenes.calls import APP, JOB, RAY_WORKER, SELECT, Call, group_of
from tests.unit.scenes.processes import SceneCoroutine, SceneProcess, SceneThread
from tests.unit.scenes.scene import TAKEN_AT, Scene, groups_of, key_of

__all__ = [
    "APP",
    "JOB",
    "RAY_WORKER",
    "SELECT",
    "TAKEN_AT",
    "Call",
    "Scene",
    "SceneCoroutine",
    "SceneProcess",
    "SceneThread",
    "group_of",
    "groups_of",
    "key_of",
]
