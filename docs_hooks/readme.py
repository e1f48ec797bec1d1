"""Draw the terminal of the README: ``python -m docs_hooks.readme``, after the wording of a report has changed.

It is the report on a recorded example as ``dstack check`` prints it, in colours for a light and a dark page. Its lines
appear one after another, once. It loads nothing, and where nothing is animated all lines are there at once.
"""

from __future__ import annotations

import io

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from tests.examples.recorded import print_report_of
from tests.paths import ROOT

README = ROOT / "README.md"
PICTURES = ROOT / "docs" / "pictures"
EXAMPLE = "two_actors"
COMMAND = "dstack check"
BEGIN_S, LINE_S = 1.5, 0.12
"""When the first line of the report appears, and how long after it the next one."""
_Rgb = tuple[int, int, int]
_LIGHT: tuple[_Rgb, ...] = ((87, 96, 106), (185, 28, 36), (17, 99, 41), (122, 78, 0), (5, 80, 174), (115, 60, 190))
_DARK: tuple[_Rgb, ...] = ((145, 152, 161), (255, 123, 114), (86, 211, 100), (227, 179, 65), (121, 192, 255))
THEMES = {
    "light": TerminalTheme((255, 255, 255), (31, 35, 40), [*_LIGHT, (3, 102, 114), (87, 96, 106)]),
    "dark": TerminalTheme((13, 17, 23), (230, 237, 243), [*_DARK, (210, 168, 255), (118, 227, 234), (145, 152, 161)]),
}
"""The colours of GitHub's pages: background, text, and the eight colours of a terminal."""
_SVG = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img">
<style>
.{unique_id}-matrix {{ font: {char_height}px/{line_height}px ui-monospace, "DejaVu Sans Mono", Menlo, monospace; }}
@keyframes appear {{ from {{ opacity: 0; }} to {{ opacity: 1; }} }}
@media (prefers-reduced-motion: no-preference) {{ text {{ animation: appear 0.1s backwards; }} }}
DELAYS
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal"><rect width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}
</defs>
<rect width="100%" height="100%" rx="8" fill="BACKGROUND" stroke="BORDER"/>
<g transform="translate({terminal_x}, 24)" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def pictures() -> dict[str, str]:
    """The pictures by the names of their files."""
    return {f"check_{name}.svg": _drawn(theme) for name, theme in THEMES.items()}


def _drawn(theme: TerminalTheme) -> str:
    console = Console(
        record=True, width=100, force_terminal=True, color_system="truecolor", file=io.StringIO(), highlight=False
    )
    console.print(Text.assemble(("$ ", "green"), (COMMAND, "bold")))
    print_report_of(console, EXAMPLE)
    count = console.export_text(clear=False).count("\n")
    delays = (
        f'[clip-path="url(#check-line-{number})"] {{{{ animation-delay: {BEGIN_S + number * LINE_S:.2f}s; }}}}'
        for number in range(1, count)
    )
    form = _SVG.replace("DELAYS", "\n".join(delays)).replace("BACKGROUND", theme.background_color.hex)
    svg = console.export_svg(
        theme=theme, code_format=form.replace("BORDER", theme.ansi_colors[7].hex), unique_id="check"
    )
    return "".join(f"{line.rstrip()}\n" for line in svg.splitlines() if line.strip())


if __name__ == "__main__":
    for name, svg in pictures().items():
        (PICTURES / name).write_text(svg)
