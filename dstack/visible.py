"""Text from strangers, made harmless: nothing of it reaches a terminal but characters one can see."""

from __future__ import annotations

import re

UNSEEN = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    r"\u3164\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
)
"""Control characters, escape sequences' beginnings, and what turns or hides the text around it."""
DRAWN_IN_ASCII = str.maketrans(
    {"┌": "+", "▶": ">", "│": "|", "└": "+", "─": "-", "→": "->", "…": "...", "×": "x", "•": "*"}
)
LONGEST = 4_000
"""Of a longer text both ends are shown: enough for any name, and bounded for what is none."""


def visible(text: str) -> str:
    """The text with every such character as its escape code, and tabs as spaces."""
    if len(text) > LONGEST:
        text = f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"
    return UNSEEN.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text.replace("\t", " "))


def visible_lines(text: str) -> str:
    """The same for each line of a text."""
    return "\n".join(map(visible, text.split("\n")))


def encodable(text: str, encoding: str) -> str:
    """The text if it can be encoded so, else with ASCII in place of the characters that a report draws with."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(DRAWN_IN_ASCII).encode(encoding, "backslashreplace").decode(encoding)
    return text
