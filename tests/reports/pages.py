"""Reads an HTML page as strictly as a test needs: balanced tags, attributes, text, data blocks."""

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = frozenset({"meta", "link", "br", "input", "img", "hr"})


@dataclass
class Element:
    """A start tag: its attributes and the text inside, descendants included."""

    tag: str
    attributes: dict[str, str | None]
    text: list[str] = field(default_factory=list)

    @property
    def content(self) -> str:
        return "".join(self.text)

    def get(self, name: str) -> str | None:
        return self.attributes.get(name)


class Page(HTMLParser):
    """A parsed page; raises AssertionError where tags do not balance or an attribute stands twice."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[Element] = []
        self.comments: list[str] = []
        self._open: list[Element] = []
        self.feed(text)
        self.close()
        assert not self._open, f"never closed: {[e.tag for e in self._open]}"

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), f"<{tag}> has an attribute twice: {names}"
        element = Element(tag, dict(attrs))
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_endtag(self, tag):
        assert self._open, f"</{tag}> closes nothing"
        assert self._open[-1].tag == tag, f"</{tag}> closes <{self._open[-1].tag}>"
        self._open.pop()

    def handle_data(self, data):
        for element in self._open:
            element.text.append(data)

    def handle_comment(self, data):
        self.comments.append(data)

    def all(self, tag: str | None = None, **attributes: str) -> list[Element]:
        """Return the elements of a tag with these attributes; class_ matches one class."""
        wanted = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
        return [e for e in self.elements if tag in (None, e.tag) and all(_has(e, *w) for w in wanted.items())]

    def one(self, tag: str | None = None, **attributes: str) -> Element:
        """Return the only such element."""
        (element,) = self.all(tag, **attributes)
        return element


def _has(element: Element, name: str, value: str) -> bool:
    found = element.get(name)
    return found is not None and (value in found.split() if name == "class" else found == value)
