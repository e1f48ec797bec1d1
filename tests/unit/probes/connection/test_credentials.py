"""Tokens and certificates are found where Ray finds them; the results are compared with Ray's."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dstack.errors import ClusterError
from dstack.probes.connection import credentials
from dstack.probes.connection.credentials import load_token, tls_credentials
from dstack.probes.node.core_workers.tls import CERTIFICATES

KNOWS_TOKENS = importlib.util.find_spec("ray._private.authentication") is not None
RAYS_OWN = """
import json, os, sys
from ray._raylet import AuthenticationTokenLoader
loader = AuthenticationTokenLoader.instance()
found = []
for variables in json.loads(sys.argv[1]):
    os.environ.update(variables)
    loader.reset_cache()
    header = loader.get_token_for_http_header(ignore_auth_mode=True) if loader.has_token(ignore_auth_mode=True) else {}
    found.append(next((value.removeprefix("Bearer ") for value in header.values()), None))
    for name in variables:
        os.environ.pop(name)
print(json.dumps(found))
"""
SOURCES: dict[str, tuple[dict[str, str], str | None]] = {
    "none": ({}, None),
    "variable": ({"RAY_AUTH_TOKEN": "  in a variable "}, "in a variable"),
    "empty variable, then file": ({"RAY_AUTH_TOKEN": "", "RAY_AUTH_TOKEN_PATH": "{folder}/token"}, "in a file"),
    "blank variable": ({"RAY_AUTH_TOKEN": "  ", "RAY_AUTH_TOKEN_PATH": "{folder}/token"}, None),
    "file": ({"RAY_AUTH_TOKEN_PATH": "{folder}/token", "HOME": "{folder}/home"}, "in a file"),
    "home": ({"HOME": "{folder}/home"}, "at home"),
    "no value for file": ({"HOME": "{folder}/home", "RAY_AUTH_TOKEN_PATH": ""}, "at home"),
    "Kubernetes, which has none here": ({"HOME": "{folder}/home", "RAY_ENABLE_K8S_TOKEN_AUTH": "1"}, "at home"),
}
VARIABLES = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", credentials.K8S)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("\t in a file \nand more\n")
    (tmp_path / "home" / ".ray").mkdir(parents=True)
    (tmp_path / "home" / ".ray" / "auth_token").write_text("at home")
    return tmp_path


def set_up(monkeypatch: pytest.MonkeyPatch, folder: Path, variables: dict[str, str]) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": str(folder), **variables}.items():
        monkeypatch.setenv(name, value.format(folder=folder))


@pytest.mark.parametrize("name", SOURCES)
def test_a_token_is_found_in_each_place(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str) -> None:
    variables, expected = SOURCES[name]
    set_up(monkeypatch, folder, variables)

    assert load_token() == (None if credentials.K8S in variables and not KNOWS_TOKENS else expected)


@pytest.mark.skipif(not KNOWS_TOKENS, reason="this version of Ray has no token authentication")
def test_ray_finds_the_same_tokens(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    set_up(monkeypatch, folder, {})
    cases = [
        {"HOME": str(folder), **{name: value.format(folder=folder) for name, value in variables.items()}}
        for variables, _ in SOURCES.values()
        if credentials.K8S not in variables  # read once for the life of a process; then load_token() asks Ray anyway
    ]

    command = [sys.executable, "-c", RAYS_OWN, json.dumps(cases)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)

    assert json.loads(done.stdout) == [
        token for variables, token in SOURCES.values() if credentials.K8S not in variables
    ]


@pytest.mark.parametrize("content", [None, "", "\nsecond line"])
def test_a_token_file_without_a_token_is_an_error(
    monkeypatch: pytest.MonkeyPatch, folder: Path, content: str | None
) -> None:
    set_up(monkeypatch, folder, {"RAY_AUTH_TOKEN_PATH": "{folder}/named", "HOME": "{folder}/home"})
    if content is not None:
        (folder / "named").write_text(content)

    with pytest.raises(ClusterError, match="cannot be opened or is empty") as caught:
        load_token()
    assert caught.value.remedy


@pytest.mark.parametrize(("value", "is_on"), [(None, False), ("0", False), ("1", True), ("True", True)])
def test_tls_follows_rays_setting(monkeypatch: pytest.MonkeyPatch, value: str | None, is_on: bool) -> None:
    for name in ("RAY_USE_TLS", *CERTIFICATES):
        monkeypatch.delenv(name, raising=False)
    if value is not None:
        monkeypatch.setenv("RAY_USE_TLS", value)

    if not is_on:
        assert tls_credentials() is None
        return
    with pytest.raises(ClusterError, match="not all of RAY_TLS_SERVER_CERT"):
        tls_credentials()
    for name in CERTIFICATES:
        monkeypatch.setenv(name, os.devnull)
    assert tls_credentials() is not None
    monkeypatch.setenv("RAY_TLS_SERVER_KEY", "/nowhere")
    with pytest.raises(ClusterError, match="No such file or directory: '/nowhere'"):
        tls_credentials()
