"""Image archives as `docker save` and `podman save --format oci-archive` write them, made without any engine."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def docker_archive(root: Path, name: str, **options: Any) -> tuple[bytes, str]:
    """An archive of one image, called `name` in it ("": nothing), whose one layer is the tar `root`; and its id."""
    layer = root.read_bytes()
    described = config(layer, options)
    id = hashlib.sha256(described).hexdigest()
    manifest = [{"Config": f"{id}.json", "RepoTags": [name] if name else None, "Layers": ["layer.tar"]}]
    files = {f"{id}.json": described, "layer.tar": layer, "manifest.json": json.dumps(manifest).encode()}
    return _tar(files), id


def oci_archive(root: Path, name: str, **options: Any) -> tuple[bytes, str]:
    """As `docker_archive`, in the format of the OCI image layout."""
    layer = root.read_bytes()
    described = config(layer, options)
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": _descriptor(described, "application/vnd.oci.image.config.v1+json"),
            "layers": [_descriptor(layer, "application/vnd.oci.image.layer.v1.tar")],
        }
    ).encode()
    listed = _descriptor(manifest, "application/vnd.oci.image.manifest.v1+json")
    index = {"schemaVersion": 2, "manifests": [{**listed, "annotations": {"org.opencontainers.image.ref.name": name}}]}
    blobs = {f"blobs/sha256/{hashlib.sha256(blob).hexdigest()}": blob for blob in (layer, described, manifest)}
    files = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}', "index.json": json.dumps(index).encode(), **blobs}
    return _tar(files), hashlib.sha256(described).hexdigest()


def config(layer: bytes, options: Mapping[str, Any]) -> bytes:
    """What describes an image of one layer; `options` are what its containers get."""
    diff_id = f"sha256:{hashlib.sha256(layer).hexdigest()}"
    return json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": options,
            "rootfs": {"type": "layers", "diff_ids": [diff_id]},
            "history": [{"created_by": "the tests"}],
        },
        sort_keys=True,
    ).encode()


def _descriptor(blob: bytes, kind: str) -> dict[str, Any]:
    return {"mediaType": kind, "digest": f"sha256:{hashlib.sha256(blob).hexdigest()}", "size": len(blob)}


def _tar(files: Mapping[str, bytes]) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o644
            archive.addfile(member, io.BytesIO(content))
    return target.getvalue()
