"""The elements of an HTML fragment, for tests: tags, attributes and texts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

ATTACK = """</details></td><img src=x onerror="window.hacked = 1"><script>window.hacked = 1</script>" onclick='x'"""
VOID = ("input", "img", "br", "meta")


@dataclass
class Element:
    """One element with the elements and texts in it."""

    tag: str
    attributes: dict[str, str]
    parts: list[Element | str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The text in it, with single blanks."""
        return " ".join("".join(one if isinstance(one, str) else f" {one.text} " for one in self.parts).split())

    def all(self, tag: str = "", **attributes: str) -> Iterator[Element]:
        """The elements below it with this tag and these attributes; ``class_`` is one of the classes."""
        for one in self.parts:
            if isinstance(one, Element):
                if tag in ("", one.tag) and all(one.has(name, value) for name, value in attributes.items()):
                    yield one
                yield from one.all(tag, **attributes)

    def has(self, name: str, value: str) -> bool:
        """Whether an attribute has this value."""
        if name == "class_":
            return value in self.attributes.get("class", "").split()
        return self.attributes.get(name.replace("_", "-")) == value

    @property
    def ids(self) -> list[str]:
        """The ids of all elements in it."""
        return [one.attributes["id"] for one in self.all() if "id" in one.attributes]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open = [Element("", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].parts.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].tag == tag, f"</{tag}> ends <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].parts.append(data)


def elements_of(html: str) -> Element:
    """The fragment as an element without a tag; every element in it is closed."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    assert len(reader.open) == 1, [one.tag for one in reader.open]
    return reader.open[0]
