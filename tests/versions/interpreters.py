"""Interpreters of other versions for tests."""

from __future__ import annotations

import pytest

from tests.versions.compatibility import FROM_DEBIAN, command_of


def python_or_skip(version: str) -> list[str]:
    """The command of a Python of this minor version. Skips the test if the version is optional and absent."""
    command = command_of(version)
    if command is None and version in FROM_DEBIAN:
        pytest.skip(f"there is no Python {version}: `make compatibility` gets it from Debian, as root")
    assert command, f"there is no Python {version} on the PATH or under pyenv"
    return command
