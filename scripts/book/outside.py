"""Preprocessor of mdBook: a link that leaves the book becomes a path."""

import json
import posixpath
import re
import sys
from collections.abc import Iterator

LINK = re.compile(r"\[([^\]]*)\]\((\.\./[^)\s]*)\)")


def chapters(items: list) -> Iterator[dict]:
    """All chapters, those below others too."""
    for item in items:
        if isinstance(item, dict) and "Chapter" in item:
            yield item["Chapter"]
            yield from chapters(item["Chapter"]["sub_items"])


def named(link: re.Match, folder: str) -> str:
    """A link as it is, or the path that it leads to from the top of the repository."""
    text, target = link.groups()
    path = posixpath.normpath(posixpath.join("docs", folder, target.partition("#")[0]))
    if path.startswith("docs/"):
        return link.group()
    return f"`{path}`" if text in path else f"{text} (`{path}`)"


def main() -> None:
    """Reads context and book, writes the book."""
    if sys.argv[1:2] == ["supports"]:
        return
    _, book = json.load(sys.stdin)
    for chapter in chapters(book["items"]):
        folder = posixpath.dirname(chapter["path"] or "")
        chapter["content"] = LINK.sub(lambda link: named(link, folder), chapter["content"])
    json.dump(book, sys.stdout)


main()
