"""The page around a flame graph, and what it does in the browser."""

from __future__ import annotations

PAGE = """\
{% block inner_head %}
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data:;
 font-src data:">
<title>{{ title|e }}</title>
{{ super() }}
<style>
:root { color-scheme: light dark; }
html body { font-family: system-ui, sans-serif; margin: 12px; background: #ffffff; color: #1b1b1b; }
h1 { font-size: 18px; margin: 0 0 2px 0; }
p { margin: 0 0 8px 0; }
.key { color: #000000; padding: 0 6px; border-radius: 3px; }
@media (prefers-color-scheme: dark) { html body { background: #1e1e1e; color: #e6e6e6; } }
</style>
{% endblock %}
{% block contents %}
<h1>{{ heading|e }}</h1>
<p>{{ subtitle|e }}</p>
<p>Click a box to zoom in.
<span class="key" style="background: #f3ba82">application</span>
<span class="key" style="background: #8ce59b">library</span>
<span class="key" style="background: #8cc4e5">Ray</span>
<span class="key" style="background: #b08ce5">standard library</span>
<span class="key" style="background: #c0c0c0">group</span></p>
{{ super() }}
{% endblock %}
"""
"""What Bokeh's page is extended by. Its Content-Security-Policy forbids every request to a network."""

LABELS = """\
const d = source.data;
const start = range.start, end = range.end, px = plot.inner_width / (end - start);
for (let i = 0; i < d.left.length; i++) {
  const left = Math.max(d.left[i], start), width = (Math.min(d.right[i], end) - left) * px - 6;
  const fits = Math.floor(width / 7.3), name = d.name[i];
  d.at[i] = left;
  d.label[i] = fits < 3 ? "" : name.length <= fits ? name : name.slice(0, fits - 1) + "\\u2026";
}
source.change.emit();
"""
"""Shows as much of each name as fits its visible part."""

ZOOM = """\
const i = source.selected.indices[0];
if (i !== undefined) {
  range.setv({start: source.data.left[i], end: source.data.right[i]});
  source.selected.indices = [];
}
"""

RESET = """\
range.setv({start: 0, end: total});
"""

SEARCH = """\
const d = source.data, words = cb_obj.value_input.toLowerCase();
let sum = 0, count = 0;
const above = new Array(d.left.length).fill(false);
for (let i = 0; i < d.left.length; i++) {
  const is_match = words !== "" && `${d.name[i]}\n${d.place[i]}`.toLowerCase().includes(words);
  const is_below = d.parent[i] >= 0 && above[d.parent[i]];
  if (is_match) {
    count += 1;
    sum += is_below ? 0 : d.right[i] - d.left[i];
  }
  above[i] = is_match || is_below;
  d.line[i] = is_match ? "#d6006c" : "#ffffff00";
  d.alpha[i] = words === "" || is_match ? 1.0 : 0.35;
}
found.text = words === "" ? "" : `${count} boxes match, ${(100 * sum / total).toFixed(1)} % of all`;
source.change.emit();
"""
"""Marks what matches, and shows its share without counting boxes below a match twice."""
