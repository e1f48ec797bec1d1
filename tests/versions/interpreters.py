"""Interpreters of other versions for tests."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from dstack.probes.node.cpython.layouts import LAYOUTS
from tests.versions.compatibility import FROM_DEBIAN, command_of

ONE_PYTHON = "MACHINE_WITH_ONE_PYTHON"
"""The variable for a machine that has no other Python, as an emulated one: tests that need others are skipped."""


def python_or_skip(version: str) -> list[str]:
    """The command of a Python of this minor version. Skips the test if the version is optional and absent."""
    command = command_of(version)
    if command is None and ONE_PYTHON in os.environ:
        pytest.skip(f"this machine has no Python {version}")
    if command is None and version in FROM_DEBIAN:
        pytest.skip(f"there is no Python {version}: `make compatibility` gets it from Debian, as root")
    assert command, f"there is no Python {version} on the PATH or under pyenv"
    return command


def all_pythons() -> list[list[str]]:
    """The commands of this interpreter, and of every other one on this machine whose version dstack reads."""
    versions = [f"{major}.{minor}" for major, minor in LAYOUTS]
    places = [*Path.home().glob(".pyenv/versions/*/bin"), Path("/usr/bin")]
    files = [path / f"python{version}" for version in versions for path in places]
    from_debian = [command for version in FROM_DEBIAN if (command := command_of(version))]
    return [[sys.executable], *([str(file)] for file in files if file.exists()), *from_debian]
