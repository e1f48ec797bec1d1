"""The hooks that MkDocs calls: they add generated pages, and insert reports.

``<!-- report: NAME -->`` in a page becomes the report on the recorded snapshot of an example, and
``<!-- report: NAME 12 -->`` its first 12 lines.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from docs_hooks import documents, examples, schemas

_ROLE = re.compile(r":(?:class|func|meth|attr|mod):(?=<code>)")
_REPORT = re.compile(r"^<!-- report: (\S+)(?: (\d+))? -->$", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    for path, content in {**documents.pages(), **examples.pages(), **schemas.pages()}.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(text: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace the marks of reports by the reports."""
    return _REPORT.sub(lambda match: examples.report_block(match[1], int(match[2]) if match[2] else None), text)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Remove the roles of Sphinx, which docstrings have before names of classes and functions."""
    return _ROLE.sub("", html)
