"""The commands that stay with a cluster: a package that is missing, and the options of a watch."""

from __future__ import annotations

import sys
from unittest.mock import patch

import pytest
from click.testing import CliRunner

from dstack.cli.monitoring import mcp, watch
from dstack.errors import UsageError


@pytest.mark.parametrize(
    ("options", "profile_hz"),
    [((), None), (("--profile",), 1.0), (("--profile-rate", "0.2"), 0.2), (("--profile", "--profile-rate", "5"), 5.0)],
)
def test_a_watch_has_a_profile_if_it_or_its_rate_is_given(options: tuple[str, ...], profile_hz: float | None) -> None:
    with patch("dstack.watch.watch") as begun:
        done = CliRunner().invoke(watch, ["--dir", "files", *options], catch_exceptions=False)

    assert done.exit_code == 0
    assert begun.call_args.args[0].profile_hz == profile_hz


def test_a_server_for_assistants_without_its_package_says_which_extra_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)

    error = CliRunner().invoke(mcp, []).exception

    assert isinstance(error, UsageError)
    assert error.message == "dstack mcp needs the package mcp, version 2."
    assert error.remedy == "Install it: pip install 'ray-dstack[mcp]'"
