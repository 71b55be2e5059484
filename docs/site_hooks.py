"""What `make docs` does beside mkdocs: pages from outside ``docs/``, links that lead there, and the list of modules.

The documents link to each other, and to sources, by their places in the repository. mkdocs knows ``docs/`` only. So the
documents beside README.md become pages, a source that is linked becomes a text file of the site, and a link to a folder
becomes its text. MODULES.md has every module with the first sentence of its docstring. A page that is made of the
code takes the place of its beginning in docs/. The index of the search becomes a script.
"""

import ast
import posixpath
import re
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from scripts.pages import WRITTEN

REPOSITORY: Final = Path(__file__).resolve().parent.parent
DOCUMENTS: Final = ("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
"""Documents outside ``docs/`` that become pages."""
PACKAGES: Final = ("protocol/seglog_protocol", "broker/seglog_broker", "clients/seglog", "clients/seglog_spark")
_LINK_OR_CODE: Final = re.compile(r"^```.*?^```$|`[^`\n]+`(?!\])|\[([^\]]+)\]\(([^)\s]+)\)", re.MULTILINE | re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Headings get the anchors that links between the documents use."""
    config.mdx_configs.setdefault("toc", {}).update(slugify=slug, permalink=False)
    return config


def slug(title: str, separator: str) -> str:
    """The anchor of a heading, as hosts of repositories make it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", separator)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the documents outside ``docs/``, and the list of modules."""
    for name in DOCUMENTS:
        files.append(File.generated(config, name, abs_src_path=str(REPOSITORY / name)))
    files.append(File.generated(config, "MODULES.md", content=modules()))
    return files


def on_page_read_source(*, page: Page, config: MkDocsConfig) -> str | None:  # noqa: ARG001
    """The text of a page that is made of the code; None of any other, which mkdocs reads itself."""
    return WRITTEN[page.file.src_uri]() if page.file.src_uri in WRITTEN else None


def modules() -> str:
    """A page with a table of modules for each package, in the order of the folders."""
    lines = ["# Modules", "", "Every module, with the first sentence of its docstring.", ""]
    for package in PACKAGES:
        paths = sorted((REPOSITORY / package).rglob("*.py"), key=lambda path: (path.parent, path.name))
        folder = None
        for path in paths:
            docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            sentence = re.sub(r"``?", "`", first_sentence(docstring)).replace("|", "\\|")
            if path.parent != folder:
                folder = path.parent
                lines += ["", f"## {folder.relative_to(REPOSITORY)}", ""]
                if path.name == "__init__.py" and sentence:
                    lines += [sentence, ""]
                lines += ["| module | |", "|---|---|"]
            if path.name != "__init__.py":
                lines.append(f"| `{path.stem}` | {sentence} |")
    return "\n".join(lines) + "\n"


def first_sentence(docstring: str) -> str:
    """The first sentence of a docstring, in one line."""
    paragraph = " ".join(docstring.partition("\n\n")[0].split())
    return re.split(r"(?<=[.:])(?= [A-Z]|$)", paragraph, maxsplit=1)[0].rstrip(":")


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


def on_post_build(*, config: MkDocsConfig) -> None:
    """Write the index of the search as a script too: a page from a folder may load that, and not a file of JSON."""
    folder = Path(config.site_dir) / "search"
    index = (folder / "search_index.json").read_text(encoding="utf-8")
    (folder / "search_index.js").write_text(f"var searchIndex = {index};\n", encoding="utf-8")
