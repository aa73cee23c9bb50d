"""Links of a built book: each leads to a file of the book, and to a place that is there."""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """Links of a page, and the anchors in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Takes one element."""
        self.links += [value for name, value in attrs if name in ("href", "src") and value]
        self.places |= {value for name, value in attrs if name == "id" and value}


def broken(path: Path, link: str, pages: dict[Path, Page]) -> bool:
    """Whether a link of the page at this path leads nowhere. Other sites are not checked."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return False
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    place = unquote(parts.fragment)
    places = pages[target].places if target in pages else set()
    return not target.is_file() or bool(place) and place not in places


def main() -> int:
    """Prints broken links."""
    root = Path(sys.argv[1]).resolve()
    # The page for missing pages has no path of its own.
    files = [path for path in root.rglob("*.html") if path.name != "404.html"]
    pages = {path: Page(path.read_text()) for path in files}
    wrong = [
        f"{path.relative_to(root)}: {link}"
        for path, page in pages.items()
        for link in page.links
        if broken(path, link, pages)
    ]
    print("\n".join(wrong) or f"{sum(len(it.links) for it in pages.values())} links, all good")
    return 1 if wrong or len(pages) < 20 else 0


sys.exit(main())
