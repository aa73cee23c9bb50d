"""Preprocessor of mdBook: links of files of the repository's top, and links that leave the book."""

import functools
import json
import posixpath
import re
import sys
from collections.abc import Iterator

# With the mark of a picture before it: one that the book does not have is named like a link.
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]*)\)")
# Chapters that are files of the repository's top.
TOP = {"overview.md": "README.md", "architecture.md": "ARCHITECTURE.md"}


def chapters(items: list) -> Iterator[dict]:
    """All chapters, those below others too."""
    for item in items:
        if isinstance(item, dict) and "Chapter" in item:
            yield item["Chapter"]
            yield from chapters(item["Chapter"]["sub_items"])


def named(link: re.Match, home: str) -> str:
    """A link of a file in this folder as a link of the book, or the path that it leads to."""
    picture, text, target = link.groups()
    if ":" in target or target.startswith("#"):
        return link.group()
    file, mark, place = target.partition("#")
    path = posixpath.normpath(posixpath.join(home, file))
    inside = {top: f"docs/{chapter}" for chapter, top in TOP.items()}.get(path, path)
    if inside.startswith("docs/"):
        # mdBook names the page of a folder index.
        there = posixpath.relpath(inside, home or "docs").replace("README.md", "index.md")
        return f"{picture}[{text}]({there}{mark}{place})"
    return f"`{path}`" if text in path else f"{text} (`{path}`)"


def main() -> None:
    """Reads context and book, writes the book."""
    if sys.argv[1:2] == ["supports"]:
        return
    _, book = json.load(sys.stdin)
    for chapter in chapters(book["items"]):
        path = chapter["path"] or ""
        home = "" if path in TOP else posixpath.join("docs", posixpath.dirname(path))
        replace = functools.partial(named, home=posixpath.normpath(home) if home else "")
        chapter["content"] = LINK.sub(replace, chapter["content"])
    json.dump(book, sys.stdout)


main()
