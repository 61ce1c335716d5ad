"""The control plane in one file, for the day its machine is lost: store, signing keys, the broker's certificate.

- With the keys and the certificate nodes go on trusting who comes after; with the store it knows what they hold. The
  mesh's secrets are in it.
- The file holds what the mesh is ruled by: it is written 0600, and belongs where nobody else reads it.
- Restoring is for a machine on which no control plane has ever run. Everything is checked before anything is written,
  and the store, by which a control plane is known to be here, is written last.
- The founder's own node begins anew there: it is another machine. What the others were told after the backup is
  unknown, so they are declared to when they have said what they hold.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import ssl
import tarfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path, PurePosixPath

from agent.control.store import Store, open_store
from agent.envelope import SEED_BYTES
from agent.errors import Refused, Unavailable
from agent.fields import Fields, canonical, parse_json
from agent.host import directories, files

_VERSION = 1
_ABOUT, _STORE = "backup.json", "store.db"
_KEY = re.compile(r"keys/([1-9][0-9]{0,8})\.seed")
_CERTIFICATE = re.compile(r"secrets/[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}/[a-z0-9][a-z0-9-]{0,62}\.(crt|key)")
_LARGEST = 4 * 1024**3


def write_backup(state: Path, store: Store, path: Path, *, node: str, fingerprints: Sequence[str], now: float) -> None:
    """Write everything to `path`; `node` is the founder's own, `fingerprints` are the broker's certificate's and,
    during a renewal, that of the next one, which may be in its place already.

    Refused when the certificate or a key isn't there; Unavailable when a key was made or retired meanwhile. The service
    may run.
    """
    signers = store.signers.all()
    parts = {_ABOUT: canonical({"version": _VERSION, "node": node, "made_at": int(now)}).encode("utf-8")}
    parts |= _certificate(state, fingerprints)
    copy = state / "control" / "store.copy"
    files.remove(copy)
    try:
        store.copy_to(copy)
        parts[_STORE] = files.read(copy) or b""
    finally:
        files.remove(copy)
    if store.signers.all() != signers:
        raise Unavailable("The signing keys have changed while the backup was written; write it again.")
    for signer in signers:
        if not signer.retired:
            name = f"keys/{signer.number}.seed"
            seed = files.read(state / "control" / name)
            if seed is None:
                raise Refused(f"The signing key {state / 'control' / name} is lost, so a backup would be of no use.")
            parts[name] = seed
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, data in parts.items():
            about = tarfile.TarInfo(name)
            about.size, about.mode, about.mtime = len(data), 0o600, int(now)
            archive.addfile(about, io.BytesIO(data))
    files.write(path.absolute(), packed.getvalue(), mode=0o600, uid=os.geteuid(), gid=os.getegid())


def restore_backup(state: Path, path: Path) -> str:
    """Put everything in its place in a state folder; the name that the founder's own node had.

    Refused, with nothing written, when a control plane has been here, the machine has joined a mesh or the file is none
    of ours.
    """
    target = state / "control" / _STORE
    if target.exists():
        raise Refused(f"A control plane has run here already ({target} is there); restore where none has.")
    about = files.read(state / "identity" / "self.json") if (state / "identity").exists() else None
    if about and Fields(parse_json(about), "self.json").text("role", "") == "joiner":
        raise Refused(
            "This machine has joined a mesh, so it can't found one: restore on another machine, or `agent reset` here "
            "first."
        )
    parts = _read(path)
    node = _node(parts, path)
    uid, gid = os.geteuid(), os.getegid()
    directories.make(state, mode=0o711, uid=uid, gid=gid)
    for name, data in parts.items():
        if name in (_ABOUT, _STORE):
            continue
        place = state / name if name.startswith("secrets/") else state / "control" / name
        for folder in reversed([one for one in place.parents if state in one.parents]):
            mode = 0o711 if folder == state / "secrets" else 0o700
            directories.make(folder, mode=mode, uid=uid, gid=gid)
        files.write(place, data, mode=0o600, uid=uid, gid=gid)
    # Made ready elsewhere: what is in its place counts, also after a crash.
    aside = state / "control" / "restored"
    directories.remove_tree(aside, uid=uid)
    for folder in (aside, aside / "control"):
        directories.make(folder, mode=0o700, uid=uid, gid=gid)
    try:
        files.write(aside / "control" / _STORE, parts[_STORE], mode=0o600, uid=uid, gid=gid)
        # An older program's is brought up to date here: nothing else has ever opened it.
        with closing(open_store(aside, migrate=True)) as store, store.transaction():
            store.nodes.begin_anew(node)
            store.nodes.doubt_serials()
            store.settings.set_served(False)
        files.move(aside / "control" / _STORE, target, uid=uid)
    finally:
        directories.remove_tree(aside, uid=uid)
    return node


def _certificate(state: Path, fingerprints: Sequence[str]) -> dict[str, bytes]:
    """The certificate that has the first of these fingerprints that any has, and its key, by their places in the state
    folder.
    """
    found: dict[str, Path] = {}
    # What is to follow another has the longer name, and during a swap both files are the same.
    for path in sorted((state / "secrets").glob("*/*.crt"), key=lambda path: len(path.name)):
        try:
            der = ssl.PEM_cert_to_DER_cert(path.read_text("ascii"))
        except ValueError:
            continue
        if path.with_suffix(".key").exists():
            found.setdefault(hashlib.sha256(der).hexdigest(), path)
    for path in (found[one] for one in fingerprints if one in found):
        return {str(one.relative_to(state)): one.read_bytes() for one in (path, path.with_suffix(".key"))}
    raise Refused(
        f"No certificate below {state / 'secrets'} is the one that nodes know the broker by ({fingerprints[0]}), so a "
        "backup would be of no use."
    )


def _read(path: Path) -> dict[str, bytes]:
    parts: dict[str, bytes] = {}
    try:
        with tarfile.open(path, mode="r:gz") as archive:
            for about in archive:
                name = str(PurePosixPath(about.name))
                known = name in (_ABOUT, _STORE) or _KEY.fullmatch(name) or _CERTIFICATE.fullmatch(name)
                content = archive.extractfile(about) if known and about.isreg() and about.size <= _LARGEST else None
                if content is None or name in parts:
                    raise Refused(f"{path} is no backup of a control plane: {about.name!r} has no place in one.")
                parts[name] = content.read()
    except FileNotFoundError as error:
        raise Refused(f"{path} is not there; name the file that `agent control backup` wrote.") from error
    except (tarfile.TarError, EOFError, OSError) as error:
        raise Refused(f"{path} is no backup of a control plane, or was cut short ({error}).") from error
    return parts


def _node(parts: dict[str, bytes], path: Path) -> str:
    """The founder's node's name, when nothing is missing."""
    keys = [data for name, data in parts.items() if _KEY.fullmatch(name)]
    if not {_ABOUT, _STORE} <= parts.keys() or not keys or any(len(key) != SEED_BYTES for key in keys):
        raise Refused(f"{path} is not whole: a backup holds a store and signing keys.")
    fields = Fields(parse_json(parts[_ABOUT]), str(path))
    if fields.integer("version") > _VERSION:
        raise Refused(f"{path} was written by a newer program; restore it with that one.")
    return fields.text("node")
