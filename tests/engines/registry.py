"""A registry on loopback with one image in it, as far as engines ask when they pull (the OCI distribution spec)."""

from __future__ import annotations

import gzip
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.engines.archives import config

_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


@dataclass
class Registry:
    """`name` is what the image is pulled by, `id` what it is then; `asked` are the paths that were asked for."""

    name: str
    id: str
    asked: list[str] = field(default_factory=list)


@contextmanager
def serve(root: Path, **options: Any) -> Iterator[Registry]:
    """For the block, an image whose one layer is the tar `root`."""
    layer = root.read_bytes()
    described, packed = config(layer, options), gzip.compress(layer, mtime=0)
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": _descriptor(described, "application/vnd.docker.container.image.v1+json"),
            "layers": [_descriptor(packed, "application/vnd.docker.image.rootfs.diff.tar.gzip")],
        }
    ).encode()
    contents = {_digest(content): content for content in (described, packed, manifest)}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.asked.append(self.path)
            last = self.path.rpartition("/")[2]
            content = manifest if last == "1" else contents.get(last, b"")
            self.send_response(200 if content or self.path == "/v2/" else 404)
            self.send_header("Content-Type", _MANIFEST if content == manifest else "application/octet-stream")
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Docker-Content-Digest", _digest(content))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *arguments: Any) -> None:
            """Nobody reads it."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found = Registry(f"127.0.0.1:{server.server_port}/team/app:1", hashlib.sha256(described).hexdigest())
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            thread.join()


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _descriptor(content: bytes, kind: str) -> dict[str, Any]:
    return {"mediaType": kind, "digest": _digest(content), "size": len(content)}
