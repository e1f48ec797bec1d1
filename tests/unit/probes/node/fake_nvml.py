"""A shared object with the functions of NVIDIA's management library, compiled for one test."""

from __future__ import annotations

import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")


def compiled(folder: Path, **macros: object) -> str:
    """The path of the library, in a new folder below this one; ``macros`` choose its pids and its faults."""
    flags = [f"-D{name}={value}" for name, value in macros.items()]
    path = folder / "_".join(["nvml", *(flag[2:].replace("=", "-") for flag in flags)]) / "libnvidia-ml.so.1"
    path.parent.mkdir(parents=True)
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", *flags, "-o", path, SOURCE], check=True)
    return str(path)
