"""The build's last step: from shiv's archive to the one file.

Keeps the installed code that shiv packed and nothing of its start-up; puts `agent/start.py` and the lines of
shell that find a Python before it; writes down what was built; packs the bundle. What differs from one build
of the same sources to the next (times, folders, installers' notes) is left behind. Run by `build.sh`, never
on a node.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from agent import __version__
from agent.build import BUILD_MEMBER
from agent.bundle import add_member, pack
from agent.errors import AgentError

CODE = "site-packages/"

HEADER = b"""#!/bin/sh
# An agent: a zip archive of Python code behind these lines; `unzip -l` lists what it holds.
if [ "$(tail -c 22 <"$0" | head -c 2)" != PK ]; then
  echo "agent: $0 is incomplete: copy it here again, whole." >&2
  exit 1
fi
if ! command -v python3 >/dev/null; then
  echo "agent: no python3 is here: install 3.10 or newer (Debian and Ubuntu: apt-get install python3)." >&2
  exit 1
fi
exec python3 -I -S "$0" "$@"
"""
"""The start of the file. An archive ends with a record of 22 bytes that begins with PK, so a file cut short
is noticed before Python takes it for a script. `exec` is the last line that the shell reads."""

DROPPED = ("INSTALLER", "RECORD", "REQUESTED", "direct_url.json")
"""Installers' notes in a .dist-info folder: they name folders of the building machine and differ between
builds."""


def assemble(shiv_archive: Path, bundle: Path, output: Path, commit: str) -> str:
    """Write the agent file `output` from what shiv packed, carrying the bundle in the folder `bundle`; return
    its build id.

    The build id is a digest of all the code, the bundle not included: files that differ in their bundle alone
    share the unpacked code. Raises Refused for a bundle that can't be carried, OSError and BadZipFile for the
    rest.
    """
    plain = output.with_name(output.name + ".plain")
    try:
        with zipfile.ZipFile(shiv_archive) as source, plain.open("wb") as target:
            code = dict(_code(source))
            start = code[CODE + "agent/start.py"]
            build = _digest({"__main__.py": start, **code})
            target.write(HEADER)
            with zipfile.ZipFile(target, "w") as archive:
                record = {"commit": commit, "id": build, "version": __version__}
                # Both are read before it is known that this Python has zlib.
                _add(archive, "__main__.py", start, zipfile.ZIP_STORED)
                _add(
                    archive,
                    BUILD_MEMBER,
                    json.dumps(record, sort_keys=True).encode() + b"\n",
                    zipfile.ZIP_STORED,
                )
                for name, content in code.items():
                    _add(archive, name, content, zipfile.ZIP_DEFLATED)
        output.unlink(missing_ok=True)
        pack(plain, bundle, output)
    finally:
        plain.unlink(missing_ok=True)
    return build


def _code(source: zipfile.ZipFile) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each installed file that belongs in the agent, sorted by name."""
    for name in sorted(source.namelist()):
        if not name.startswith(CODE) or name.endswith("/"):
            continue
        folders = name.split("/")[1:-1]
        notes = bool(folders) and folders[0].endswith(".dist-info") and name.rsplit("/", 1)[1] in DROPPED
        # The bundle lies beside the code, and the scripts of the packages are nothing that a node runs.
        if notes or folders[:1] == ["bin"] or folders[:2] == ["agent", "bundles"] or "__pycache__" in folders:
            continue
        yield name, source.read(name)


def _digest(files: dict[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name} {len(files[name])}\n".encode() + files[name])
    return digest.hexdigest()[:20]


def _add(archive: zipfile.ZipFile, name: str, content: bytes, compression: int) -> None:
    add_member(archive, name, [content], len(content), compression)


def main() -> int:
    """Run by `build.sh`; a failure is one sentence."""
    parser = argparse.ArgumentParser(prog="assemble", description=__doc__, allow_abbrev=False)
    parser.add_argument("--shiv", type=Path, required=True, help="the archive that shiv made")
    parser.add_argument("--bundle", type=Path, required=True, help="the folder of the bundle to carry")
    parser.add_argument("--commit", default="unknown", help="the sources' commit, written down in the file")
    parser.add_argument("--output", type=Path, required=True, help="the file to write")
    arguments = parser.parse_args()
    try:
        build = assemble(arguments.shiv, arguments.bundle, arguments.output, arguments.commit)
    except AgentError as error:
        print(f"build.sh: {error}", file=sys.stderr)
        return 1
    print(f"{arguments.output}: {arguments.output.stat().st_size} bytes, build {build}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
