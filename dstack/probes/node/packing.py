"""The answer of a probe as it travels to the caller: JSON, compressed."""

from __future__ import annotations

import json
import re
import zlib

from dstack.probes.node import wire

_SURROGATE = re.compile("[\ud800-\udfff]")


def packed(answer: wire.Answer | wire.RecordedRound) -> bytes:
    """The answer as compressed JSON; a name that is no valid Unicode has its bytes escaped."""
    text = json.dumps(answer, ensure_ascii=False, separators=(",", ":"))
    try:
        data = text.encode()
    except UnicodeEncodeError:
        data = _SURROGATE.sub(lambda match: rf"\\u{ord(match[0]):04x}", text).encode()
    return zlib.compress(data)
