"""Tokens and certificates are found where Ray finds them; the results are compared with Ray's."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dstack.errors import ClusterError
from dstack.probes.connection import connect
from dstack.probes.connection.connect import gcs_addresses, latest_address, load_token, tls_credentials
from dstack.probes.node.core_worker_calls import CERTIFICATES

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
VARIABLES = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", connect.K8S)


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

    assert load_token() == (None if connect.K8S in variables and not KNOWS_TOKENS else expected)


@pytest.mark.skipif(not KNOWS_TOKENS, reason="this version of Ray has no token authentication")
def test_ray_finds_the_same_tokens(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    set_up(monkeypatch, folder, {})
    cases = [
        {"HOME": str(folder), **{name: value.format(folder=folder) for name, value in variables.items()}}
        for variables, _ in SOURCES.values()
        if connect.K8S not in variables  # read once for the life of a process; then load_token() asks Ray anyway
    ]

    command = [sys.executable, "-c", RAYS_OWN, json.dumps(cases)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)

    assert json.loads(done.stdout) == [token for variables, token in SOURCES.values() if connect.K8S not in variables]


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


ADDRESSES_OF_RAY = """
import json, os, sys
from ray._private.services import find_bootstrap_address, find_gcs_addresses
latest = []
for variables in json.loads(sys.argv[1]):
    os.environ.update(variables)
    latest.append(find_bootstrap_address(None))
    for name in variables:
        os.environ.pop(name)
print(json.dumps([sorted(find_gcs_addresses()), latest]))
"""
"""The addresses that Ray finds, and the latest one in each environment."""
SLEEPER = "import sys; print(flush=True); sys.stdin.read()"


@contextmanager
def process(program: str, *arguments: str) -> Iterator[None]:
    """A process of that name with these arguments."""
    command = [program, "-c", SLEEPER, *arguments]
    with subprocess.Popen(command, executable=sys.executable, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as one:
        assert one.stdin is not None
        assert one.stdout is not None
        one.stdout.readline()
        yield
        one.stdin.close()


def rays_own(*environments: dict[str, str]) -> tuple[list[str], list[str | None]]:
    command = [sys.executable, "-c", ADDRESSES_OF_RAY, json.dumps(environments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    addresses, latest = json.loads(done.stdout)
    return addresses, latest


def test_raylets_name_their_gcs() -> None:
    with (
        process("/opt/ray/raylet", "--port=1", "--gcs-address=192.0.2.91:6379"),
        process("raylet", "words in one --gcs-address=[2001:db8::91]:6379 argument"),
        process("raylet", "--gcs-address=", "--gcs-address=None"),
        process("/opt/raylet/python", "--gcs-address=192.0.2.92:6379"),
    ):
        here, rays = gcs_addresses(), rays_own()[0]

    made_up = {"192.0.2.91:6379", "[2001:db8::91]:6379", "192.0.2.92:6379", "", "None"}
    assert made_up & here == made_up.intersection(rays) == {"192.0.2.91:6379", "[2001:db8::91]:6379"}


def test_the_latest_cluster_is_the_one_noted_by_ray_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.delenv("TMPDIR", raising=False)
    for name in ("ray", "system", "nothing"):
        (tmp_path / name / "ray").mkdir(parents=True)
    (tmp_path / "ray" / "ray" / "ray_current_cluster").write_text("192.0.2.91:6379\n")
    (tmp_path / "system" / "ray" / "ray_current_cluster").write_text("192.0.2.92:6379")
    rays, systems, nothing = (str(tmp_path / name) for name in ("ray", "system", "nothing"))
    environments = (
        {"RAY_TMPDIR": rays, "TMPDIR": systems},
        {"TMPDIR": systems},
        {"RAY_TMPDIR": nothing, "TMPDIR": systems},
    )

    assert [under(variables) for variables in environments] == rays_own(*environments)[1]
    assert [under(variables) for variables in environments] == ["192.0.2.91:6379", "192.0.2.92:6379", None]


def under(variables: dict[str, str]) -> str | None:
    """The latest address in an environment."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        return latest_address()
