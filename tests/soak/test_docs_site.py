"""`make docs`: it builds without a warning, as of links that lead nowhere, and pages load nothing from elsewhere."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from urllib.parse import urldefrag

import pytest

from tests.support import REPOSITORY

_OWN = ("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")


class _Page(HTMLParser):
    """What a page loads by itself, and its anchors."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "link" and "href" in given:
            self.loaded.append(given["href"])
        self.loaded += [given[name] for name in ("src", "srcset", "data", "action") if name in given]
        self.loaded += re.findall(r"url\(['\"]?([^)'\"]+)", given.get("style", ""))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "WARNING" not in done.stdout, done.stdout
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, _Page]:
    """All pages but that for addresses that do not exist, whose links are from the root of a server."""
    return {path: _Page(path) for path in sorted(site.rglob("*.html")) if path.name != "404.html"}


def test_every_document_is_a_page(site: Path) -> None:
    documents = [*_OWN, *(path.relative_to(REPOSITORY / "docs").as_posix() for path in _documents())]
    for name in documents:
        page = site / re.sub(r"(README)?\.md$", lambda found: "index.html" if found[1] else ".html", name)
        assert page.exists(), name
    assert {path.name for path in REPOSITORY.glob("*.md")} == set(_OWN)


def _documents() -> list[Path]:
    return sorted((REPOSITORY / "docs").rglob("*.md"))


def test_pages_load_nothing_from_elsewhere(site: Path, pages: dict[Path, _Page]) -> None:
    loaded = 0
    for path, page in pages.items():
        for resource in page.loaded:
            if resource.startswith("data:"):
                continue
            assert not re.match(r"\w+:|//", resource), f"{path.name} loads {resource}"
            assert (path.parent / urldefrag(resource)[0].partition("?")[0]).resolve().is_file(), resource
            loaded += 1
        for script in re.findall(r"<script>(.*?)</script>", path.read_text(encoding="utf-8"), re.DOTALL):
            assert not re.search(r"https?:|['\"]//", script), f"{path.name}: {script}"
    assert loaded > 100
    for sheet in site.rglob("*.css"):
        text = re.sub(r"/\*.*?\*/", "", sheet.read_text(encoding="utf-8"), flags=re.DOTALL)
        for resource in re.findall(r"url\(['\"]?([^)'\"]+)", text):
            if not resource.startswith("data:"):
                assert not re.match(r"\w+:|//", resource), f"{sheet.name} loads {resource}"
        assert "@import" not in text, sheet.name


def test_the_search_needs_no_server(site: Path) -> None:
    """What it loads are scripts, which a page from a folder may; lunr gets every section with its text."""
    search = (site / "search" / "main.js").read_text(encoding="utf-8")
    assert not re.search(r"Worker|XMLHttpRequest|fetch\(|getScript", search)
    index = (site / "search" / "search_index.js").read_text(encoding="utf-8")
    sections = json.loads(index.removeprefix("var searchIndex = ").rstrip(";\n"))["docs"]
    assert any("retention.ms" in section["text"] for section in sections)


@pytest.mark.parametrize(
    ("module", "shown_as"),
    [
        ("seglog", ("seglog", "seglog_protocol.errors")),
        ("seglog.asyncio", ("seglog.asyncio",)),
        ("seglog.trio", ("seglog.trio",)),
        ("seglog.arrow", ("seglog.arrow", "seglog")),
        ("seglog_spark", ("seglog_spark", "seglog_spark.session")),
        ("seglog_protocol.errors", ("seglog_protocol.errors",)),
    ],
)
def test_every_public_name_of_the_client_is_in_the_reference(
    module: str, shown_as: tuple[str, ...], pages: dict[Path, _Page]
) -> None:
    anchors = {anchor for page in pages.values() for anchor in page.anchors}
    package = import_module(module)
    names = getattr(package, "__all__", None)
    if names is None:
        names = [name for name, value in vars(package).items() if isinstance(value, type) and name.endswith("Error")]
    for name in names:
        assert name == "__version__" or {f"{place}.{name}" for place in shown_as} & anchors, f"{module}.{name}"
