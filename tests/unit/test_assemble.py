"""The build's last step: which wheels it takes, and what of them lies where in the file."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from agent.assemble import Wheel, assemble, read_wheels
from agent.bundle import open_bundle
from agent.errors import Refused

NATIVE = "{name}-1.0-cp3{minor}-cp3{minor}-{tags}.whl"
TAGS = {
    "x86_64-glibc": "manylinux2014_x86_64.manylinux_2_17_x86_64",
    "x86_64-musl": "musllinux_1_2_x86_64",
    "aarch64-glibc": "manylinux_2_17_aarch64",
}


def make(path: Path, files: Mapping[str, str]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Wheels of two packages: `cffi` for each Python and platform, `pynacl` for each platform; and one with no native
    code."""
    path = tmp_path / "wheels"
    path.mkdir()
    for platform, tags in TAGS.items():
        for minor in (10, 12):
            name = f"_cffi_backend.cpython-3{minor}-{platform}.so"
            files = {name: f"{platform} {minor}", "cffi/api.py": "", "cffi-1.0.dist-info/METADATA": "of cffi"}
            make(path / NATIVE.format(name="cffi", minor=minor, tags=tags), files)
        files = {
            "nacl/_sodium.abi3.so": platform,
            "nacl/__init__.py": "# nacl",
            "pynacl-1.0.dist-info/WHEEL": platform,
            "pynacl-1.0.dist-info/RECORD": platform,
        }
        make(path / f"pynacl-1.0-cp38-abi3-{tags}.whl", files)
    make(path / "pika-1.0-py3-none-any.whl", {"pika/__init__.py": ""})
    return path


@pytest.fixture
def lock(folder: Path) -> Path:
    path = folder.parent / "lock"
    digests = [hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in folder.glob("*.whl")]
    path.write_text("".join(f"    --hash=sha256:{digest}\n" for digest in digests))
    return path


@pytest.fixture
def shiv(tmp_path: Path) -> Path:
    names = ("agent/start.py", "agent/unpacking.py", "agent/__init__.py", "agent/bundles/x.toml", "bin/pika")
    return make(tmp_path / "shiv", {f"site-packages/{name}": f"# {name}" for name in names})


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    path = tmp_path / "bundle"
    path.mkdir()
    (path / "bundle.toml").write_text('name = "small"\n')
    return path


def test_each_platform_lies_beside_the_others(
    folder: Path, lock: Path, shiv: Path, bundle: Path, tmp_path: Path
) -> None:
    output = tmp_path / "agent"
    build = assemble(shiv, read_wheels(folder, lock), bundle, output, "c0ffee")
    with zipfile.ZipFile(output) as archive:
        names = archive.namelist()
        content = {name: archive.read(name).decode() for name in names}
    code = {
        "site-packages/agent/__init__.py",
        "site-packages/agent/start.py",
        "site-packages/agent/unpacking.py",
        "site-packages/cffi-1.0.dist-info/METADATA",
        "site-packages/nacl/__init__.py",
    }
    for platform in TAGS:
        code.add(f"native/{platform}/abi3/nacl/_sodium.abi3.so")
        for minor in (10, 12):
            name = f"native/{platform}/cp3{minor}/_cffi_backend.cpython-3{minor}-{platform}.so"
            assert content[name] == f"{platform} {minor}"
            code.add(name)
    beginning = {"__main__.py", "unpacking.py", "build.json"}
    assert {name for name in names if not name.startswith("bundle/")} - beginning == code
    record = json.loads(content["build.json"])
    assert record["natives"] == [f"{platform}/cp3{minor}" for platform in sorted(TAGS) for minor in (10, 12)]
    carried = {"name": "small", "digest": open_bundle(output).digest}
    assert (record["id"], record["commit"], record["bundle"]) == (build, "c0ffee", carried)
    header = output.read_bytes().partition(b"PK\x03\x04")[0].decode()
    assert "for name in python3.12 python3.10 python3; do" in header
    assert "@" not in header.replace("$@", "")


def test_python_that_one_package_has_nothing_for_is_not_promised(
    folder: Path, lock: Path, shiv: Path, bundle: Path, tmp_path: Path
) -> None:
    wheels = [wheel for wheel in read_wheels(folder, lock) if (wheel.platform, wheel.abi) != ("x86_64-musl", "cp310")]
    assemble(shiv, wheels, bundle, tmp_path / "agent", "c0ffee")
    with zipfile.ZipFile(tmp_path / "agent") as archive:
        natives = json.loads(archive.read("build.json"))["natives"]
    assert [native for native in natives if "musl" in native] == ["x86_64-musl/cp312"]


def test_wheel_that_is_not_the_locked_one_is_refused(folder: Path, lock: Path) -> None:
    wheel = next(iter(sorted(folder.glob("pynacl*"))))
    wheel.write_bytes(wheel.read_bytes() + b"x")
    with pytest.raises(Refused, match=f"{wheel.name} is not what {lock} lists"):
        read_wheels(folder, lock)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("cffi-1.0-cp312-cp312-win_amd64.whl", "tag win_amd64"),
        ("cffi-1.0-cp312-cp312-linux_x86_64.whl", "tag linux_x86_64"),
        ("cffi-1.0-cp312-cp312-manylinux2014_x86_64.musllinux_1_2_x86_64.whl", "more than one platform"),
        ("cffi.whl", "named as no wheel is"),
    ],
)
def test_wheel_of_no_known_platform_is_refused(folder: Path, lock: Path, name: str, sentence: str) -> None:
    (folder / next(iter(folder.glob("cffi*"))).name).rename(folder / name)
    with pytest.raises(Refused, match=sentence):
        read_wheels(folder, lock)


def test_wheels_that_disagree_are_refused(folder: Path, lock: Path, shiv: Path, bundle: Path, tmp_path: Path) -> None:
    other = make(tmp_path / "other.whl", {"nacl/__init__.py": "# another"})
    wheels = [*read_wheels(folder, lock), Wheel(other, "pynacl", "abi3", "aarch64-musl")]
    with pytest.raises(Refused, match=r"nacl/__init__\.py of other\.whl differs"):
        assemble(shiv, wheels, bundle, tmp_path / "agent", "c0ffee")
    assert not (tmp_path / "agent").exists()
