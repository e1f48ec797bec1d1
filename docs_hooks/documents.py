"""Documents outside of ``docs`` that become pages, with their links adapted."""

from __future__ import annotations

import re

from docs_hooks import examples
from tests.paths import ROOT

PAGES = {
    "README.md": "index.md",
    "SECURITY.md": "security.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "examples/hangs/README.md": "reported_hangs.md",
}


def pages() -> dict[str, str]:
    """The pages by path."""
    return {page: _page(document) for document, page in PAGES.items()}


def _page(document: str) -> str:
    text = (ROOT / document).read_text()
    for other, page in PAGES.items():
        text = text.replace(f"]({other}", f"]({page}")
    text = text.replace("](docs/", "](").replace('="docs/', '="')
    return re.sub(r"\]\([\w./]*?(\w+)\.py\)", lambda match: f"]({examples.link(match[1])})", text)
