"""A Debian tree with a Python that this machine does not have, made by mmdebstrap and entered as root.

Each command runs in its own mount namespace, which ends with it. So no mount remains, and the tree can be removed like
any other directory, even while a command runs in it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

SUITE = "forky"
MIRROR = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")
TOOLS = ("mmdebstrap", "unshare", "chroot")
COPIED = ("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")
PASSED_ON = ("PIP_", "SSL_", "REQUESTS_", "CURL_", "http_", "https_", "no_", "HTTP_", "HTTPS_", "NO_")
"""Prefixes of the variables that pip and Ray need to reach other machines."""
ENTER = """
set -e
tree=$1
shift
mount -t proc proc "$tree/proc"
mount --rbind /dev "$tree/dev"
mount --rbind /sys "$tree/sys"
while [ "$1" != -- ]; do
    mkdir -p "$tree$1"
    mount --bind "$1" "$tree$1"
    shift
done
shift
exec chroot "$tree" "$@"
"""


class DebianTree:
    """A tree in ``directory`` with this minor version of Python; ``shared`` directories have the same path there."""

    def __init__(self, directory: Path, python: str, shared: tuple[Path, ...]) -> None:
        self._directory = directory
        self._python = python
        self._shared = shared

    @staticmethod
    def missing() -> str | None:
        """The reason why this machine cannot make or enter such a tree, if it cannot."""
        if os.geteuid():
            return "a Debian tree with it can only be made and entered by root"
        lacking = [tool for tool in TOOLS if not shutil.which(tool)]
        return f"this machine has no {' and no '.join(lacking)}" if lacking else None

    @property
    def is_made(self) -> bool:
        """Whether the tree is complete."""
        return (self._directory / "ready").exists()

    def make(self) -> None:
        """Make the tree unless it exists. Raises ``CalledProcessError`` if Debian's mirror has no such Python."""
        if self.is_made:
            return
        if self._directory.exists():
            shutil.rmtree(self._directory)
        self._directory.parent.mkdir(exist_ok=True)
        packages = f"python{self._python},python{self._python}-venv,python{self._python}-dev,ca-certificates"
        options = ("--quiet", "--mode=root", "--variant=apt", "--aptopt=Acquire::Check-Valid-Until false")
        command = ("mmdebstrap", *options, f"--include={packages}", SUITE, str(self._directory), MIRROR)
        subprocess.run(command, check=True)
        for file in filter(os.path.exists, (*COPIED, str(Path.home() / ".config/pip/pip.conf"))):
            copy = self._directory / file.lstrip("/")
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.unlink(missing_ok=True)
            shutil.copyfile(file, copy)
        (self._directory / "ready").touch()

    def command(self, *command: str, directory: Path, environment: dict[str, str]) -> list[str]:
        """The command line that runs a command in the tree, in this directory, with these and few other variables."""
        passed_on = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}
        own = {"HOME": str(Path.home()), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
        variables = [f"{name}={value}" for name, value in {**passed_on, **own, **environment}.items()]
        shared = [str(one) for one in self._shared if one.exists()]
        enter = ["unshare", "--mount", "sh", "-c", ENTER, "sh", str(self._directory), *shared, "--"]
        return [*enter, "env", "-i", "-C", str(directory), *variables, *command]
