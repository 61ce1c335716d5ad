"""The build's last step: from shiv's archive and the wheels with native code to the one file.

Keeps the installed code that shiv packed and nothing of its start-up; lays the native code of every platform beside
it; puts `agent/start.py` and the lines of shell that find a Python before it; writes down what was built; packs the
bundle. What differs from one build of the same sources to the next (times, folders, installers' notes) is left behind.
Run by `build.sh`, never on a node.

In the file, native code lies as `native/PLATFORM/TAG/…`: PLATFORM as in `x86_64-glibc`, TAG the wheel's ABI tag
(`cp312`, or `abi3` for all). `agent/start.py` unpacks what fits over the rest.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent import __version__
from agent.build import BUILD_MEMBER
from agent.bundle import add_member, pack
from agent.errors import AgentError, Refused

CODE = "site-packages/"
NATIVE = "native/"
HEADER = "header.sh"
BEGINNING = {"__main__.py": "agent/start.py", "unpacking.py": "agent/unpacking.py"}

DROPPED = ("INSTALLER", "RECORD", "REQUESTED", "WHEEL", "direct_url.json")
"""Notes in a .dist-info folder for and by installers: they name folders and platforms, and differ between builds."""

KEPT = {"cffi": re.compile(r"_cffi_backend\..*|cffi-.*\.dist-info/.*")}
"""What of a package is carried, where that isn't all: PyNaCl was made with cffi and needs its C part alone."""

_WHEEL = re.compile(r"(?P<name>\w+)-[^-]+-(?P<python>\w+)-(?P<abi>\w+)-(?P<platforms>[\w.]+)\.whl")
_LIBRARIES = {"manylinux": "glibc", "musllinux": "musl"}


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel with native code: for which platform (`x86_64-glibc`) and ABI (`cp312`, `abi3`) its name says it is."""

    path: Path
    name: str
    abi: str
    platform: str


def assemble(shiv_archive: Path, wheels: Sequence[Wheel], bundle: Path, output: Path, commit: str) -> str:
    """Write the agent file `output` from what shiv packed and from `wheels`, carrying the bundle in the folder
    `bundle`; return its build id.

    The build id is a digest of all the code, the bundle not included: files that differ in their bundle alone
    share the unpacked code. Raises Refused for a bundle that can't be carried and wheels that don't belong together,
    OSError and BadZipFile for the rest.
    """
    plain = output.with_name(output.name + ".plain")
    try:
        with zipfile.ZipFile(shiv_archive) as source, plain.open("wb") as target:
            code = {**dict(_code(source)), **_wheels_code(wheels)}
            beginning = {name: code[CODE + place] for name, place in BEGINNING.items()}
            header = _header(wheels)
            build = _digest({HEADER: header, **beginning, **code})
            target.write(header)
            with zipfile.ZipFile(target, "w") as archive:
                record = {"commit": commit, "id": build, "natives": _natives(wheels), "version": __version__}
                # These are read before it is known that this Python has zlib.
                for name, content in beginning.items():
                    _add(archive, name, content, zipfile.ZIP_STORED)
                _add(archive, BUILD_MEMBER, json.dumps(record, sort_keys=True).encode() + b"\n", zipfile.ZIP_STORED)
                for name in sorted(code):
                    _add(archive, name, code[name], zipfile.ZIP_DEFLATED)
        output.unlink(missing_ok=True)
        pack(plain, bundle, output)
    finally:
        plain.unlink(missing_ok=True)
    return build


def read_wheels(folder: Path, lock: Path) -> list[Wheel]:
    """The wheels with native code in a folder, sorted by name; Refused for one that the lock file doesn't list by its
    digest."""
    digests = set(re.findall(r"--hash=sha256:([0-9a-f]{64})", lock.read_text("utf-8")))
    wheels = []
    for path in sorted(folder.glob("*.whl")):
        if hashlib.sha256(path.read_bytes()).hexdigest() not in digests:
            raise Refused(f"{path} is not what {lock} lists: remove {folder} and build again.")
        match = _WHEEL.fullmatch(path.name)
        if match is None:
            raise Refused(f"{path} is named as no wheel is: remove {folder} and build again.")
        if match["abi"] != "none":
            wheels.append(Wheel(path, match["name"], match["abi"], _platform(match["platforms"])))
    return wheels


def _platform(tags: str) -> str:
    """`x86_64-glibc` of `manylinux2014_x86_64.manylinux_2_17_x86_64`."""
    found = set()
    for tag in tags.split("."):
        match = re.fullmatch(r"(manylinux|musllinux)(?:2014|_\d+_\d+)_(\w+)", tag)
        if match is None:
            raise Refused(f"no machine is known whose wheels bear the tag {tag}.")
        found.add(f"{match[2]}-{_LIBRARIES[match[1]]}")
    if len(found) != 1:
        raise Refused(f"the tags {tags} are of more than one platform.")
    return found.pop()


def _natives(wheels: Sequence[Wheel]) -> list[str]:
    """Each `PLATFORM/TAG` that every package has native code for."""
    names = {wheel.name for wheel in wheels}
    pythons = {wheel.abi for wheel in wheels} - {"abi3"}
    return [
        f"{platform}/{abi}"
        for platform in sorted({wheel.platform for wheel in wheels})
        for abi in sorted(pythons)
        if {wheel.name for wheel in wheels if wheel.platform == platform and wheel.abi in (abi, "abi3")} == names
    ]


def _wheels_code(wheels: Sequence[Wheel]) -> dict[str, bytes]:
    """What the wheels hold by its name in the file. Refused when two say different things of what isn't native."""
    code: dict[str, bytes] = {}
    for wheel in wheels:
        kept = KEPT.get(wheel.name, re.compile(".*"))
        with zipfile.ZipFile(wheel.path) as source:
            for name in source.namelist():
                if name.endswith("/") or not kept.fullmatch(name) or _is_note(name.split("/")):
                    continue
                native = name.endswith(".so")
                place = f"{NATIVE}{wheel.platform}/{wheel.abi}/{name}" if native else CODE + name
                content = source.read(name)
                if code.setdefault(place, content) != content:
                    raise Refused(f"{name} of {wheel.path.name} differs from another platform's.")
    return code


def _header(wheels: Sequence[Wheel]) -> bytes:
    """The lines of shell, asking for the Pythons that native code is there for, newest first."""
    minors = sorted({int(native.split("/cp3")[1]) for native in _natives(wheels)}, reverse=True)
    names = " ".join(f"python3.{minor}" for minor in minors)
    text = Path(__file__).with_name(HEADER).read_text("utf-8")
    values: Mapping[str, str] = {"@NAMES@": names, "@OLDEST@": f"3.{minors[-1]}", "@NEWEST@": f"3.{minors[0]}"}
    for name, value in values.items():
        text = text.replace(name, value)
    return text.encode()


def _code(source: zipfile.ZipFile) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each installed file that belongs in the agent."""
    for name in source.namelist():
        if not name.startswith(CODE) or name.endswith("/"):
            continue
        folders = name.split("/")[1:-1]
        # The bundle lies beside the code, and the scripts of the packages are nothing that a node runs.
        if folders[:1] == ["bin"] or folders[:2] == ["agent", "bundles"] or "__pycache__" in folders:
            continue
        if not _is_note(name.split("/")[1:]):
            yield name, source.read(name)


def _is_note(names: Sequence[str]) -> bool:
    return names[0].endswith(".dist-info") and names[-1] in DROPPED


def _digest(files: Mapping[str, bytes]) -> str:
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
    parser.add_argument("--wheels", type=Path, required=True, help="the folder of wheels with native code")
    parser.add_argument("--lock", type=Path, required=True, help="the lock file that lists them")
    parser.add_argument("--bundle", type=Path, required=True, help="the folder of the bundle to carry")
    parser.add_argument("--commit", default="unknown", help="the sources' commit, written down in the file")
    parser.add_argument("--output", type=Path, required=True, help="the file to write")
    arguments = parser.parse_args()
    try:
        wheels = read_wheels(arguments.wheels, arguments.lock)
        build = assemble(arguments.shiv, wheels, arguments.bundle, arguments.output, arguments.commit)
    except AgentError as error:
        print(f"build.sh: {error}", file=sys.stderr)
        return 1
    print(f"{arguments.output}: {arguments.output.stat().st_size} bytes, build {build}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
