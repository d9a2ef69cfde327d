#!/usr/bin/env python3
"""Prepares the pages for the site. mdbook runs it (see book.toml).

A page works in the repository as it is. On the site three things differ: a link that leaves docs/src leads to the file in
the repository, a diagram is a part of the page, so that it has the page's colors and its text can be selected, and an
included part of a function begins at the margin.
"""

import json
import os
import re
import sys
import textwrap

LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")


def page(text, folder, repository):
    """Returns the text of a page of the site. `folder` is that of the page, relative to docs/src."""
    parts = re.split(r"(^[ \t]*```.*?^[ \t]*```[ \t]*$)", text, flags=re.M | re.S)
    for index in range(1, len(parts), 2):
        if parts[index].startswith("```"):
            first, *code, last = parts[index].split("\n")
            parts[index] = "\n".join([first, textwrap.dedent("\n".join(code)), last])
    for index in range(0, len(parts), 2):
        parts[index] = LINK.sub(lambda link: replaced(link, folder, repository), parts[index])
    return "".join(parts)


def replaced(link, folder, repository):
    is_image, text, target = link.groups()
    path, _, anchor = target.partition("#")
    if "://" in target or not path:
        return link[0]
    path = os.path.normpath(os.path.join("src", folder, path))
    if is_image and path.endswith(".svg"):
        return diagram(path, text)
    if not path.startswith(".."):
        return link[0]
    if not os.path.exists(path):
        sys.exit(f"{target} does not exist")
    kind = "tree" if os.path.isdir(path) else "blob"
    url = f"{repository}/{kind}/main/{os.path.relpath(path, '..')}"
    return f"[{text}]({url}{'#' + anchor if anchor else ''})"


def diagram(path, text):
    svg = open(path, encoding="utf-8").read()
    svg = re.sub(r"<style>.*?</style>", "", svg, flags=re.S).strip()
    description = text.replace("&", "&amp;").replace("<", "&lt;")
    svg = re.sub(r"(<title>.*?</title>)", lambda title: f"{title[0]}\n<desc>{description}</desc>", svg, count=1)
    return f'<figure class="diagram" tabindex="0">\n{svg}\n</figure>'


def pages(items):
    for item in items:
        if isinstance(item, dict) and "Chapter" in item:
            yield item["Chapter"]
            yield from pages(item["Chapter"]["sub_items"])


def main():
    if sys.argv[1:2] == ["supports"]:
        return
    context, guide = json.load(sys.stdin)
    repository = context["config"]["output"]["html"]["git-repository-url"]
    for chapter in pages(guide["items"]):
        if chapter["path"]:
            chapter["content"] = page(chapter["content"], os.path.dirname(chapter["path"]), repository)
    json.dump(guide, sys.stdout)


main()
