"""Writes the reports into the README: ``python -m docs_hooks.readme``, after the wording of a report has changed."""

from __future__ import annotations

import re

from docs_hooks.examples import report_block
from tests.paths import ROOT

README = ROOT / "README.md"
_PRINTED = re.compile(r"(<!-- printed: (\S+) -->\n)```text\n.*?```", re.DOTALL)


def with_reports(text: str) -> str:
    """The text with the report of an example in each block below a mark ``<!-- printed: NAME -->``."""
    return _PRINTED.sub(lambda match: match[1] + report_block(match[2]), text)


if __name__ == "__main__":
    README.write_text(with_reports(README.read_text()))
