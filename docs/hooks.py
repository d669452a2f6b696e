"""How the pages in docs/ become a site: some are files of the repository's root, and links to code stay readable."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
# Pages of the site that are files of the repository's root, where GitHub looks for them.
FROM_ROOT = {"contributing/index.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^):#\s]+)(#[^)\s]*)?\)")


def on_config(config: Any) -> Any:
    """A page for each method, in the order of their table."""
    table = (ROOT / "docs" / "methods" / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| \[([^\]]+)\]\(([^)]+)\)", table, re.MULTILINE)
    pages: list[Any] = [{"All of them": "methods/README.md"}, *({name: f"methods/{file}"} for name, file in listed)]
    config["nav"] = [{"Methods": pages} if "Methods" in item else item for item in config["nav"]]
    return config


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """A page's text as the site wants it."""
    here = page.file.src_uri
    origin = FROM_ROOT.get(here)
    if origin is not None:
        markdown = (ROOT / origin).read_text(encoding="utf-8")
    folder = posixpath.dirname("docs/" + here) if origin is None else ""
    return LINK.sub(lambda found: _link(found, here, folder, config.get("repo_url")), markdown)


def _link(link: re.Match[str], here: str, folder: str, repository: str | None) -> str:
    """A link written for the repository, as one of the site: to a page, to the code on the web, or its words alone."""
    mark, words, target, anchor = link.groups()
    path = posixpath.normpath(posixpath.join(folder, target))
    page = next((page for page, origin in FROM_ROOT.items() if path in (origin, f"docs/{page}")), None)
    if page is None and path.startswith("docs/"):
        page = path.removeprefix("docs/")
    if page is not None:
        return f"{mark}[{words}]({posixpath.relpath(page, posixpath.dirname(here) or '.')}{anchor or ''})"
    return f"[{words}]({repository.rstrip('/')}/blob/main/{path})" if repository else words
