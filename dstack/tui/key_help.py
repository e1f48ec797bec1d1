"""The keys of a screen, for the help and for the command palette."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from textual.app import App, SystemCommand
from textual.screen import Screen

HELPED = ("own", "view", "outline", "app")
"""The groups of keys in the help, by the first part of their ids; the view's own keys come first."""
IN_PALETTE = ("app.", "view.", "own.")


def help_keys(app: App[Any]) -> list[tuple[str, str, str]]:
    """Key, label and tooltip of each enabled binding of the screen; one of each label."""
    ids = {active: (active.binding.id or "").partition(".") for active in app.screen.active_bindings.values()}
    known = [active for active, (group, _, _) in ids.items() if active.enabled and group in HELPED]
    keys = {}
    for active in sorted(known, key=lambda active: (HELPED.index(ids[active][0]), ids[active][2])):
        binding = active.binding
        key = binding.key_display or app.get_key_display(binding)
        keys[binding.description] = (key, binding.description, active.tooltip)
    return list(keys.values())


def palette_commands(app: App[Any], screen: Screen[Any]) -> Iterator[SystemCommand]:
    """One command for each enabled binding."""
    for active in screen.active_bindings.values():
        binding = active.binding
        if active.enabled and binding.id and binding.id.startswith(IN_PALETTE):

            def run(node: Any = active.node, action: str = binding.action) -> None:
                app.call_later(app.run_action, action, node)

            yield SystemCommand(binding.description, active.tooltip, run)
