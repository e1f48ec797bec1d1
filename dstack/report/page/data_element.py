"""Data for the page's scripts, in elements that browsers do not execute."""

from __future__ import annotations

import json

from markupsafe import Markup

AS_JSON = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"})
"""JSON remains the same, and neither ends an element nor begins a comment."""


def data_element(data: object, css_class: str) -> Markup:
    """An element with data as JSON; its texts are as they are, so they have to be visible."""
    text = json.dumps(data, separators=(",", ":")).translate(AS_JSON)
    return Markup(f'<script type="application/json" class="{css_class}">') + Markup(text) + Markup("</script>")
