"""HTML pages that work without a network: each is one file with its charts, drawn by Bokeh in the browser."""

from __future__ import annotations

from dstack.errors import UsageError

OLDEST = (3, 6)
"""The first version of Bokeh with all that the charts use; seen to work up to 3.9."""


def require_bokeh() -> None:
    """Raise :class:`UsageError` if Bokeh is missing or too old; the other modules of this package import it."""
    try:
        from bokeh import __version__

        found = tuple(map(int, __version__.split(".")[:2]))
    except (ImportError, ValueError):
        found = (0, 0)
    if found < OLDEST:
        raise UsageError("An HTML page needs Bokeh 3.6 or later.", "Install it with: pip install 'bokeh>=3.6'")
