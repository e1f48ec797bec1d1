"""The origin of a frame's code: the user, a library, Ray or the standard library."""

from __future__ import annotations

import importlib.util
import re
import site
import sysconfig

from dstack.probes.node.threads import Frame, Position

PACKAGES = re.compile(r"/(?:site|dist)-packages/([^/]*)")
STANDARD = re.compile(r"<frozen |/(?:.*/)?lib(?:64)?/python3\.\d+/")
"""Paths of installed packages, and of standard libraries of other Pythons than the reader's."""


class Origins:
    """The origins of frames, by the paths of their files."""

    def __init__(self) -> None:
        ray = importlib.util.find_spec("ray")
        libraries = [*site.getsitepackages(), site.getusersitepackages()]
        standard = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]
        self._roots = (
            *((path + "/", "ray") for path in ((ray and ray.submodule_search_locations) or ())),
            *((path + "/", "library") for path in libraries),
            *((path + "/", "stdlib") for path in standard),
        )
        self._of_files: dict[str, str] = {}

    def of(self, frame: Frame) -> str:
        """``user``, ``library``, ``ray`` or ``stdlib``."""
        return self.of_position(frame.position)

    def of_position(self, position: Position) -> str:
        """``user``, ``library``, ``ray`` or ``stdlib``."""
        if position.origin:
            return position.origin
        if position.module:
            return "library"
        origin = self._of_files.get(position.file)
        if origin is None:
            origin = self._of_files[position.file] = self._find(position.file)
        return origin

    def _find(self, file: str) -> str:
        for root, origin in self._roots:
            if file.startswith(root):
                return origin
        if packages := PACKAGES.findall(file):
            return "ray" if packages[-1] == "ray" else "library"
        return "stdlib" if STANDARD.match(file) or not file else "user"

    def is_user(self, frame: Frame) -> bool:
        """Whether a frame runs the user's own code."""
        return self.of_position(frame.position) == "user"
