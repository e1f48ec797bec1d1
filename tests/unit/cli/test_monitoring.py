"""Commands that need a package more than dstack does."""

from __future__ import annotations

import sys

import pytest
from click.testing import CliRunner

from dstack.cli.monitoring import mcp
from dstack.errors import UsageError


def test_a_server_for_assistants_without_its_package_says_which_extra_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)

    error = CliRunner().invoke(mcp, []).exception

    assert isinstance(error, UsageError)
    assert error.message == "dstack mcp needs the package mcp, version 2."
    assert error.remedy == "Install it: pip install 'ray-dstack[mcp]'"
