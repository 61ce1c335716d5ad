"""What the archive of an image is called among the blobs, where nobody called it anything.

`docker.io/library/debian:12` is `docker.io%2Flibrary%2Fdebian%3A12.image.tar`. An image that a bundle declares without
naming a blob is loaded from the blob that is called so, if there is one.
"""

from __future__ import annotations

import re

_ENDING = ".image.tar"
_ESCAPED = re.compile(r"[^A-Za-z0-9._-]")
_ESCAPE = re.compile(r"%([0-9A-F]{2})")


def archive_of(image: str) -> str:
    """The blob that holds the image of this name."""
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", image) + _ENDING


def image_of(blob: str) -> str | None:
    """The image whose archive a blob is by its name; None for any other blob."""
    image = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), blob.removesuffix(_ENDING))
    return image if archive_of(image) == blob else None
