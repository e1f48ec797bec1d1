"""Numbers, lists and durations in English: the one place where a text's singular, plural and units are made."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from time import localtime, strftime
from typing import TypeVar

SHOWN = 3
"""The items that a sentence or a short list has, unless more of a kind are useful; it counts the others."""


def word(count: int, one: str, many: str = "") -> str:
    """``wait`` or ``waits``: the noun or verb for so many, without the number."""
    return one if count == 1 else many or f"{one}s"


def plural(count: int, one: str, many: str = "") -> str:
    """``1 driver``, ``10,000 drivers``."""
    return f"{count:,} {word(count, one, many)}"


def capitalised(text: str) -> str:
    """The text with its first letter in upper case, and all others as they are."""
    return text[:1].upper() + text[1:]


def base_name(path: str) -> str:
    """The last part of a path."""
    return path.rpartition("/")[2]


def times(count: int) -> str:
    """``once`` or ``6 times``."""
    return "once" if count == 1 else f"{count:,} times"


def times_of(name: str, count: int) -> str:
    """``20 x acquire``; of one only its name."""
    return name if count == 1 else f"{count:,} × {name}"


def size(count: float) -> str:
    """``15 B``, ``2.9 KiB``, ``14 MiB``, ``1.2 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 999.5:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 9.95 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def listed(words: Sequence[str], joint: str = " and ") -> str:
    """``a, b and c``."""
    return joint.join((", ".join(words[:-1]), words[-1])) if len(words) > 1 else "".join(words)


def alike(count: int) -> str:
    """`` (3 alike)`` after a text that is about so many; empty for one."""
    return f" ({count:,} alike)" if count > 1 else ""


def shortly(words: Sequence[str], joint: str = " and ", shown: int = SHOWN) -> str:
    """``a, b, c and 5 more``: a list of no more than ``shown`` words."""
    if len(words) <= shown:
        return listed(words, joint)
    return f"{', '.join(words[:shown])}{joint}{len(words) - shown:,} more"


def close_to(name: str, known: Iterable[str]) -> str:
    """``Did you mean a or b? ``: the known names like this one, in whole or in their last part; empty if none is."""
    from difflib import get_close_matches

    folded = {form.casefold(): one for one in known for form in (base_name(one), one)}
    close = dict.fromkeys(folded[one] for one in get_close_matches(name.casefold(), folded, n=SHOWN, cutoff=0.7))
    return f"Did you mean {listed(list(close), ' or ')}? " if close else ""


def duration(seconds: float) -> str:
    """``0.4 s``, ``12 s``, ``3 min 20 s``, ``2 h 5 min``, ``3 d 4 h``."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, size, smaller, part in (("d", 86_400, "h", 3_600), ("h", 3_600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{whole} s"


def time_of_day(at: float) -> str:
    """``03:12:40``, by the clock and in the time zone of dstack's host; ``at`` are Unix seconds."""
    return strftime("%H:%M:%S", localtime(at))


def moment(at: float, ago_s: float) -> str:
    """The same, with the date of what is a day or more ago: ``2026-11-27 03:12:40``."""
    return time_of_day(at) if ago_s < 86_400 else strftime("%Y-%m-%d %H:%M:%S", localtime(at))


def short_duration(seconds: float) -> str:
    """The same with milliseconds: ``0.4 ms``, ``340 ms``, ``1.2 s``."""
    milliseconds = seconds * 1_000
    if milliseconds < 9.95:
        return f"{milliseconds:.1f} ms" if milliseconds else "0 s"
    return f"{milliseconds:.0f} ms" if milliseconds < 999.5 else duration(seconds)


def distinct(texts: Sequence[Hashable], details: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """As many of the details of each text as no two read the same with, in order; none where the text is enough."""
    shown: list[tuple[str, ...]] = [()] * len(texts)
    for at in range(max(map(len, details), default=0)):
        counts = Counter(zip(texts, shown, strict=True))
        if len(counts) == len(texts):
            break
        shown = [
            (*so_far, *filter(None, own[at : at + 1])) if counts[text, so_far] > 1 else so_far
            for text, so_far, own in zip(texts, shown, details, strict=True)
        ]
    return shown


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


K = TypeVar("K")
V = TypeVar("V")


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """The values of each key, in their order; the keys are in the order of their first values."""
    found: defaultdict[K, list[V]] = defaultdict(list)
    for key, value in pairs:
        found[key].append(value)
    return dict(found)
