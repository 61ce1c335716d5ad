"""The bundle: the declared resources and their blobs, as a folder on its author's side and inside the one file.

Upholds: one file carries exactly one bundle; every byte of it is covered by a manifest of sizes and SHA-256 digests,
and nothing is in it that the manifest does not list; blobs are streamed, never held in memory, and may be gigabytes;
whoever reads a blob to its end has read what the manifest promised, or gets `Refused`; packing the same bundle into the
same file twice gives the same bytes. The document is carried, not understood: `agent.resources` parses it.

On the author's side a bundle is `bundle.toml` and, beside it, a flat folder `blobs/`. In the file, blobs lie end to
end, sorted by name and as they are, between the lines of shell and the zip archive; that has the document as
`bundle/bundle.toml` and the manifest as `bundle/manifest.json`. An archive is found from its end, and its own offsets
count from its beginning, so every Python starts from it however much lies before it (before 3.13 none does from one
with 64-bit records). Where the blobs begin follows from the manifest's sizes.
"""

from agent.bundle.bundle import Bundle, open_bundle, verify
from agent.bundle.files import CHUNK
from agent.bundle.images import archive_of, image_of
from agent.bundle.manifest import Blob
from agent.bundle.packing import add_member, pack

__all__ = ["CHUNK", "Blob", "Bundle", "add_member", "archive_of", "image_of", "open_bundle", "pack", "verify"]
