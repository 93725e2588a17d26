"""The static files of the dashboard.

Invariant: only files found in the package's `assets` folder are served, by their whole names; a path from a request is never opened.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".json": "application/json; charset=utf-8",
    ".webmanifest": "application/manifest+json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".txt": "text/plain; charset=utf-8",
}
FOLDER: Final = "assets"
GRAFANA: Final = "grafana.json"


@dataclass(frozen=True, slots=True)
class Asset:
    """One static file."""

    content: bytes
    content_type: str
    etag: str


def load_assets() -> Mapping[str, Asset]:
    """Return all files by URL path: `/app.js`, `/` for the page itself, and the dashboard for Grafana."""
    package = files("headrace.dashboard")
    found = {f"/{name}": _asset(name, file.read_bytes()) for name, file in _walk(package / FOLDER, "")}
    found[f"/{GRAFANA}"] = _asset(GRAFANA, (package / GRAFANA).read_bytes())
    return {**found, **({"/": found["/index.html"]} if "/index.html" in found else {})}


def _walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    if not folder.is_dir():
        return
    for entry in folder.iterdir():
        name = prefix + entry.name
        if entry.is_dir():
            yield from _walk(entry, f"{name}/")
        elif _suffix(name) in _TYPES:
            yield name, entry


def _asset(name: str, content: bytes) -> Asset:
    return Asset(content, _TYPES[_suffix(name)], f'"{hashlib.sha256(content).hexdigest()[:32]}"')


def _suffix(name: str) -> str:
    return "." + name.rpartition(".")[2]
