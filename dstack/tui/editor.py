"""Opens a line of code in the user's editor."""

from __future__ import annotations

import os
import shlex
import subprocess
from typing import Any

from textual.app import App, SuspendNotSupported

from dstack.probes.node.stacks.source_lines import find_source


def open_in_editor(app: App[Any], file: str, line: int) -> None:
    """Open the line in ``$VISUAL`` or ``$EDITOR``, if this machine has the file; else notify the user."""
    found = find_source(file)
    if found is None:
        app.notify(f"{file} is not a source file on this machine.", severity="warning")
        return
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    command = [*shlex.split(editor), f"+{max(1, line)}", found]
    try:
        with app.suspend():
            subprocess.run(command, check=False)
    except SuspendNotSupported:
        app.notify("No terminal for an editor.", severity="warning")
    except OSError as error:
        app.notify(f"Cannot start {editor}: {error}. Set $EDITOR.", severity="error")
    app.refresh()
