"""What `make docs` does beside mkdocs: pages from outside ``docs/``, and links that lead there.

The documents link to each other, and to sources, by their places in the repository. mkdocs knows ``docs/`` only. So the
documents beside README.md become pages, a source that is linked becomes a text file of the site, and a link to a folder
becomes its text.
"""

import posixpath
import re
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

REPOSITORY: Final = Path(__file__).resolve().parent.parent
DOCUMENTS: Final = ("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
"""Documents outside ``docs/`` that become pages."""
_LINK_OR_CODE: Final = re.compile(r"^```.*?^```$|`[^`\n]+`(?!\])|\[([^\]]+)\]\(([^)\s]+)\)", re.MULTILINE | re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Headings get the anchors that links between the documents use."""
    config.mdx_configs.setdefault("toc", {}).update(slugify=slug, permalink=False)
    return config


def slug(title: str, separator: str) -> str:
    """The anchor of a heading, as hosts of repositories make it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", separator)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the documents outside ``docs/``."""
    for name in DOCUMENTS:
        files.append(File.generated(config, name, abs_src_path=str(REPOSITORY / name)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between places in the repository into links between pages."""
    place = page.file.src_uri
    folder = posixpath.dirname(place if place in DOCUMENTS else f"docs/{place}")

    def linked(found: "re.Match[str]") -> str:
        text, target = found[1], found[2]
        if target is None or re.match(r"[a-z]+:|#", target):
            return found[0]
        path, hash_, anchor = target.partition("#")
        path = posixpath.normpath(posixpath.join(folder, path))
        if (REPOSITORY / path).is_dir():
            return text
        uri = path if path in DOCUMENTS else path.removeprefix("docs/")
        if uri == path and path not in DOCUMENTS:
            uri = _source_file(path, files, config)
        return f"[{text}]({posixpath.relpath(uri, posixpath.dirname(place))}{hash_}{anchor})"

    # Behind the language of a block there may be words for the tests, which mkdocs does not expect.
    return re.sub(r"^(```\w+) .*$", r"\1", _LINK_OR_CODE.sub(linked, markdown), flags=re.MULTILINE)


def _source_file(path: str, files: Files, config: MkDocsConfig) -> str:
    """Where in the site a file of the repository is, as text that a browser shows."""
    uri = f"source/{path}.txt"
    if files.get_file_from_path(uri) is None:
        content: Any = (REPOSITORY / path).read_bytes()
        files.append(File.generated(config, uri, content=content))
    return uri
