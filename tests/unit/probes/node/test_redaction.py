"""Secrets are hidden by their names, in the texts of locals, in command lines and in source."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dstack.probes.node.probe import NodeProbe
from dstack.probes.node.redaction import MASK, masked_command, masked_local, masked_log_line, masked_source
from dstack.probes.node.wire import ReadTarget, SampleOptions, encoded

NAMES = [
    *("token", "RAY_AUTH_TOKEN", "password", "passwd", "pwd", "db_password", "secret", "client_secret", "key"),
    *("api_key", "apikey", "AWS_SECRET_ACCESS_KEY", "credential", "credentials", "auth", "authorization"),
    *("Authorization", "cookie", "Set-Cookie", "private_key", "passphrase", "session_id", "jwt"),
]
VALUE = "s3cr3t"


@pytest.mark.parametrize("name", NAMES)
def test_a_secret_is_hidden_by_its_name_in_any_position(name: str) -> None:
    assert masked_local(name, f'"{VALUE}"') == MASK
    for text in (
        f'{{"{name}": "{VALUE}"}}',
        f'{{"user": "bob", "{name}": "{VALUE}"}}',
        f'{{"a": {{"b": [1, {{"{name}": "{VALUE}", "c": 1}}]}}}}',
        f'{{"{name}": {{"user": "bob", "value": "{VALUE}"}}}}',
        f'{{"{name}": "with a quote", "{VALUE}"}}',
        f'[("{name}", "{VALUE}")]',
        f'"{name}={VALUE}"',
        f'"{name}: {VALUE}"',
        f'"--{name} = {VALUE}"',
    ):
        assert VALUE not in masked_local("config", text), text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('"redis://:s3cr3t@host:6379"', '"redis://***@host:6379"'),
        ('["https://bob:s3cr3t@host/x"]', '["https://***@host/x"]'),
        ('"Bearer s3cr3t"', '"Bearer ***'),
        ('{"user": "bob", "password": "s3cr3t"}', '{"user": "bob", "password": ***'),
    ],
)
def test_other_texts_are_unchanged(text: str, shown: str) -> None:
    assert masked_local("config", text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "1",
        "None",
        '"CPU"',
        '{"CPU": 1.0, "GPU": 2}',
        '["a", "b"]',
        '["CPU", "GPU"]',
        "<Model at 0x7f0964086c10>",
        '{"bob": "alice"}',
        '"s3://bucket/a"',
    ],
)
def test_ordinary_values_are_unchanged(text: str) -> None:
    assert masked_local("x", text) == text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("env", '{"x": "s3cr3t"}'),
        ("environment", '[("x", "s3cr3t")]'),
        ("os_environ", '{"x": ...}'),
        ("x", '{"PATH": "/bin", "DB": "s3cr3t"}'),
        ("x", '[("PATH", ...), ("HOME", "/root"), ("DB", "s3cr3t")]'),
        ("x", '["PATH=/bin", "DB=s3cr3t"]'),
        ("data", "{<bytes at 0x7f09641f2d60>: <bytes at 0x7f09642686c0>, ...}"),
    ],
)
def test_variables_of_the_environment_are_hidden_whole(name: str, text: str) -> None:
    assert masked_local(name, text) == MASK


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("python train.py --token=s3cr3t --epochs 3", "python train.py --token=*** --epochs 3"),
        ("python train.py --api-key s3cr3t x", "python train.py --api-key *** x"),
        ("WANDB_API_KEY=s3cr3t python train.py", "WANDB_API_KEY=*** python train.py"),
        ("python t.py --password 's3 cr3t' x", "python t.py --password *** x"),
        ("python t.py redis://:s3cr3t@host/0", "python t.py redis://***@host/0"),
        ("python tokenize.py data", "python tokenize.py data"),
        ("python -m keyboard.main a=b", "python -m keyboard.main a=b"),
    ],
)
def test_a_command_line_keeps_all_but_secrets(command: str, shown: str) -> None:
    assert masked_command(command) == shown


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ('    password = "s3cr3t"  # why', '    password = "***"  # why'),
        ("login(user, token='s3cr3t')", "login(user, token='***')"),
        ('os.environ["WANDB_API_KEY"] = "s3cr3t"', 'os.environ["WANDB_API_KEY"] = "***"'),
        ('client({"Authorization": f"Bearer s3cr3t"})', 'client({"Authorization": f"***"})'),
        ('secret: str = "s3cr3t"', 'secret: str = "***"'),
        ('    token = "s3cr3t that is cut', '    token = "***'),
        ("sorted(x, key=lambda one: one.name)", "sorted(x, key=lambda one: one.name)"),
        ("token = self.tokens.get()", "token = self.tokens.get()"),
        ('return ray.get(self.store.get.remote(key="left"))', 'return ray.get(self.store.get.remote(key="left"))'),
    ],
)
def test_a_line_of_code_keeps_all_but_literal_secrets(line: str, shown: str) -> None:
    assert masked_source(line) == shown


PROGRAM = """
import collections, os, time
def work(token, config, **options):
    plain = {"password_of": {"bob": "s3cr3t-nested"}, "x": 1}
    environment, whole, inside, pairs = dict(os.environ), os.environ, os.environ._data, list(os.environ.items())
    url, header, ordered = "redis://:s3cr3t-url@h", "Cookie: s3cr3t-cookie", collections.OrderedDict(secret="s3cr3t-o")
    shown = {"learning_rate": 0.1, "name": "bob"}
    api_key = "s3cr3t-literal"
    print("ready", flush=True)
    time.sleep(100)
work(os.environ["PLAIN"], [("credential", os.environ["PLAIN"])], cookie=os.environ["PLAIN"])
"""


def sample(pid: int, *, with_locals: bool) -> str:
    """An answer as it travels."""
    target: ReadTarget = {"worker_id": "w", "pid": pid, "port": 0, "is_driver": True}
    options: SampleOptions = {
        "native": False,
        "locals": with_locals,
        "pause": False,
        "children": False,
        "deadline_s": 20.0,
    }
    return encoded(NodeProbe().sample([target], options)).decode()


def test_no_secret_of_a_process_leaves_its_node(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {**os.environ, "PLAIN": "s3cr3t-variable"}
    with subprocess.Popen(
        [sys.executable, "program.py"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE
    ) as program:
        try:
            assert program.stdout
            assert program.stdout.readline() == b"ready\n"
            text, without = (sample(program.pid, with_locals=one) for one in (True, False))
        finally:
            program.kill()

    assert '"shown":"{\\"learning_rate\\": 0.1, \\"name\\": \\"bob\\"}"' in text
    assert "s3cr3t" not in text
    assert '"token":"***"' in text
    assert 'api_key = \\"***\\"' in text
    assert "locals" not in without
    assert "learning_rate" not in without


def test_hostile_texts_are_not_slow() -> None:
    began = time.monotonic()

    for one in ("-", "- ", "key", "key ", "=", "://", "a@", '"', "A_", "token=", "bearer "):
        masked_command(one * 10**6)
        masked_local("x", (one * 1000)[:1000])
        masked_source((one * 160)[:160])

    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("login with password: s3cr3t failed", "login with password: *** failed"),
        ("token=s3cr3t, user=bob", "token=*** user=bob"),
        ("the token is expired", "the token is expired"),
        ('{"api_key": "s3cr3t", "user": "bob"}', '{"api_key": ***, "user": "bob"}'),
        ("Authorization: Bearer s3cr3t ok", "Authorization: Bearer *** ok"),
        ("GET https://bob:s3cr3t@host/x?sig=1&token=s3cr3t", "GET https://***@host/x?sig=1&token=***"),
        ("KeyError: 'name'", "KeyError: 'name'"),
        ("TokenError: expired", "TokenError: expired"),
        ("1,200 tokens: 512 cached", "1,200 tokens: 512 cached"),
    ],
)
def test_lines_of_logs_are_masked_up_to_the_end_of_the_value(line: str, shown: str) -> None:
    assert masked_log_line(line) == shown


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("key", "auth", "session_id", "jwt")])
def test_a_secret_in_a_log_is_hidden_by_its_name(name: str) -> None:
    for text in (f"{name}={VALUE} x", f"{name}: {VALUE}", f'"{name}": "{VALUE}"', f"--{name} {VALUE} x"):
        assert VALUE not in masked_log_line(text), text
