"""Checks links: `links.py documents` those of the Markdown files, `links.py site DIR` those of the built guide."""

import html.parser
import os
import re
import subprocess
import sys

REPOSITORY = re.compile(r"https://github\.com/edge-csi/edge-csi/(?:blob|tree)/main/")
LINK = re.compile(r"\]\(([^()\s]+)\)|^\[[^\]^]+\]:\s+(\S+)", flags=re.M)


def documents():
    """Every relative link leads to a file and, with `#`, to a heading. Links to the repository's URL do too."""
    wrong = []
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    listed = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()
    pages = {page: without_code(open(page).read()) for page in listed if os.path.exists(page)}
    for page, text in pages.items():
        for target in (one or other for one, other in LINK.findall(text)):
            path, _, anchor = REPOSITORY.sub("", target).partition("#")
            if "://" in path or path.startswith("mailto:"):
                continue
            folder = "" if REPOSITORY.match(target) else os.path.dirname(page)
            path = os.path.normpath(os.path.join(folder, path)) if path else page
            if not os.path.exists(path):
                wrong.append(f"{page}: {target} does not exist")
            elif anchor and path.endswith(".md") and anchor not in anchors(open(path).read()):
                wrong.append(f"{page}: {target}: no heading has this anchor")
    return wrong, sum(len(LINK.findall(text)) for text in pages.values())


def without_code(text):
    text = re.sub(r"^[ \t]*```.*?^[ \t]*```[ \t]*$", "", text, flags=re.M | re.S)
    return re.sub(r"`[^`\n]*`", "`", text)


def anchors(text):
    """The anchors of a page's headings, as GitHub and mdbook make them."""
    found = {}
    text = re.sub(r"^[ \t]*```.*?^[ \t]*```[ \t]*$", "", text, flags=re.M | re.S)
    for heading in re.findall(r"^#{1,6} +(.*?) *#*$", text, flags=re.M):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", heading))
        count = found.setdefault(anchor, 0)
        found[anchor] += 1
        if count:
            found[f"{anchor}-{count}"] = 1
    return found


class Page(html.parser.HTMLParser):
    """The anchors and the links of a page of the site."""

    def __init__(self, path):
        super().__init__()
        self.anchors, self.links = set(), []
        text = open(path, encoding="utf-8").read()
        # An include of a part that the file does not have.
        self.has_empty_block = re.search(r"<pre>\s*<code[^>]*>\s*</code>", text) is not None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name == "id" or (name == "name" and tag == "a"):
                self.anchors.add(value)
            elif name in ("href", "src") and value:
                self.links.append(value)


def site(root):
    """Every local link of the built pages leads to a file of the site and, with `#`, to an element in it, and no block of
    code is empty."""
    wrong = []
    names = [os.path.join(folder, name) for folder, _, files in os.walk(root) for name in files]
    # The page for addresses that do not exist has links relative to the root of the published site.
    names = [name for name in names if name.endswith(".html") and not name.endswith("404.html")]
    pages = {name: Page(name) for name in names}
    for name, page in pages.items():
        if page.has_empty_block:
            wrong.append(f"{name}: a block of code is empty")
        for link in page.links:
            path, _, anchor = link.partition("#")
            if re.match(r"[a-z]+:|//", link):
                continue
            path = os.path.normpath(os.path.join(os.path.dirname(name), path.split("?")[0])) if path else name
            if not os.path.isfile(path):
                wrong.append(f"{name}: {link} does not exist")
            elif anchor and path in pages and anchor not in pages[path].anchors:
                wrong.append(f"{name}: {link}: the page has no such anchor")
    return wrong, sum(len(page.links) for page in pages.values())


CHECKS = {"documents": documents, "site": site}
WRONG, CHECKED = CHECKS[sys.argv[1]](*sys.argv[2:])
print("\n".join(WRONG) or f"{CHECKED} links lead somewhere")
sys.exit(bool(WRONG) or not CHECKED)
