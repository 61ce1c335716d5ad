"""Which image of an engine a declared name stands for, remembered: by the id that a load or pull resolved.

- A name that a bundle carries is never asked for at a registry, nor is one that the engine has.
- What is remembered is written before an image is loaded, so that one that was there before is never taken for ours.
- An image that a newer one replaced goes when nothing runs by it any more.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from agent.errors import Refused, Unavailable
from agent.fields import Fields, canonical, parse_json
from agent.host import directories, files
from agent.kinds.engine import Engine, EngineFailed
from agent.kinds.kind import Machine
from agent.resources import EngineName

log = logging.getLogger(__name__)

_PULL_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Record:
    """One declared image.

    `archive` is the SHA-256 of what was loaded, "" for a pulled one. `image` is the id that it became, "" until that
    is known; `names` what the archive calls it; `others` the ids that were there before. `previous` are ids of ours
    that it replaced.
    """

    name: str
    engine: EngineName
    archive: str
    image: str = ""
    names: tuple[str, ...] = ()
    found: bool = False
    others: tuple[str, ...] = ()
    previous: tuple[str, ...] = ()


def read(machine: Machine, name: str) -> Record | None:
    """What is remembered of a name; None when nothing is, or nothing that can be read."""
    return _read(_place(machine, name))


def write(machine: Machine, record: Record) -> None:
    """Remember it, durably."""
    place, uid, gid = _place(machine, record.name), os.geteuid(), os.getegid()
    for folder in (place.parent.parent, place.parent):
        directories.make(folder, mode=0o700, uid=uid, gid=gid)
    content = canonical(
        {
            "name": record.name,
            "engine": record.engine.value,
            "archive": record.archive,
            "image": record.image,
            "names": list(record.names),
            "found": record.found,
            "others": list(record.others),
            "previous": list(record.previous),
        }
    )
    files.write(place, content.encode(), mode=0o600, uid=uid, gid=gid)


def forget(machine: Machine, name: str) -> None:
    """No longer remember it."""
    files.remove(_place(machine, name), uid=os.geteuid())


def id_of(engine: Engine, name: str) -> str:
    """The id of an image that the engine has, by name or id; "" when it has none such."""
    found = engine.inspect("image", name)
    return found.text("Id").removeprefix("sha256:") if found else ""


def resolve(engine: Engine, machine: Machine, name: str) -> str:
    """The id to run by. Pulled when it is neither declared nor there; Unavailable when it can't be had."""
    record = read(machine, name)
    if record is None or not record.archive:
        return id_of(engine, name) or pull(engine, name)
    if not record.image:
        raise Unavailable(f"The image {name} that is carried is not loaded yet; see what became of image:{name}.")
    if record.engine is not engine.name:
        raise Unavailable(
            f"The image {name} was loaded into {record.engine.value}, not {engine.name.value}; "
            "name the same engine for the image and for what runs by it."
        )
    if not id_of(engine, record.image):
        raise Unavailable(f"{engine.name.value} has lost the image {name}; it is loaded again before the next try.")
    return record.image


def wanted(machine: Machine, name: str) -> str:
    """The id that a carried name stands for; "" for one that isn't carried: any image of that name will do."""
    record = read(machine, name)
    return record.image if record and record.archive else ""


def is_loaded(machine: Machine, name: str, archive: str) -> bool:
    """Whether an archive with this SHA-256 was loaded for a name."""
    record = read(machine, name)
    return record is not None and record.image != "" and record.archive == archive


def pull(engine: Engine, name: str) -> str:
    """Have the engine fetch it from its registry, telling the log how it goes; its id."""
    log.info("%s fetches the image %s", engine.name.value, name)
    engine.feed(["pull", name], (), f"fetch the image {name}", seconds=_PULL_SECONDS, tell=_tell(name))
    return id_of(engine, name)


def let_go(engine: Engine, machine: Machine) -> None:
    """Take away the images that newer ones replaced, if nothing runs by them."""
    for record in _all(machine):
        if record.engine is not engine.name or not record.previous:
            continue
        left = tuple(id for id in record.previous if not _removed(engine, id))
        if left != record.previous:
            write(machine, replace(record, previous=left))


def remove(engine: Engine, record: Record) -> str:
    """Take away what this record says was loaded or pulled; why it is left, or ""."""
    names = [name for name in record.names if id_of(engine, name) == record.image]
    try:
        for one in names or [record.image]:
            if id_of(engine, one):
                engine.run(["rmi", one], f"remove the image {record.name}")
    except EngineFailed as error:
        return f"{error}; take it away with `{engine.name.value} rmi {record.image[:12]}`"
    return ""


def _removed(engine: Engine, id: str) -> bool:
    if not id_of(engine, id):
        return True
    try:
        engine.run(["rmi", id], "remove an image")
    except EngineFailed as error:
        log.debug("an image that was replaced stays: %s", error)
        return False
    return True


def _tell(name: str) -> Callable[[str], None]:
    return lambda line: log.info("the image %s: %s", name, line)


def _all(machine: Machine) -> Iterator[Record]:
    for place in sorted(_place(machine, "").parent.glob("*.json")):
        record = _read(place)
        if record:
            yield record


def _read(place: Path) -> Record | None:
    content = files.read(place, uid=os.geteuid())
    if content is None:
        return None
    try:
        fields = Fields(parse_json(content), str(place))
        return Record(
            name=fields.text("name"),
            engine=EngineName(fields.text("engine")),
            archive=fields.text("archive"),
            image=fields.text("image"),
            names=fields.texts("names"),
            found=fields.flag("found"),
            others=fields.texts("others"),
            previous=fields.texts("previous"),
        )
    except (Refused, ValueError) as error:
        log.warning("The record of an image can't be read and is taken for lost: %s", error)
        return None


def _place(machine: Machine, name: str) -> Path:
    return machine.state / "run" / "images" / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.json"
