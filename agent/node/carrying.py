"""Images that a file is to carry, taken from an engine of the machine on which it is packed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from agent.errors import Refused, Unavailable
from agent.fields import nearest, quoted
from agent.kinds.engine import Engine, Engines
from agent.node.substrate import Substrate
from agent.resources import EngineName, specs


def image_sources(
    names: Sequence[str], substrate: Substrate, engines: Engines, wanted: EngineName | None
) -> Mapping[str, Callable[[], Iterator[bytes]]]:
    """What gives the archive of each image, by its name; nothing is saved yet.

    It comes from the engine `wanted`, else from the first that has it, podman before docker. Refused when the bundle
    doesn't ask for an image of that name, or has it already, and when no engine has it.
    """
    declared = {one.name: one.spec for one in substrate.resources if isinstance(one.spec, specs.Image)}
    for name in names:
        if name not in declared:
            raise Refused(
                f"the bundle {substrate.bundle.name} asks for no image {quoted(name)}, so it would be carried in "
                f'vain{nearest(name, declared)}; declare it, with kind = "image"'
            )
        archive = declared[name].archive
        if archive:
            raise Refused(
                f"the bundle {substrate.bundle.name} has the image {name} already, as its blob {archive.name}"
            )
    return {name: partial(_holder(name, _engines(engines, wanted)).save, name) for name in names}


def _engines(engines: Engines, wanted: EngineName | None) -> list[Engine]:
    here = [engine for engine in engines.here() if wanted in (None, engine.name)]
    if not here:
        which = wanted.value if wanted else "container engine"
        raise Unavailable(f"This machine has no {which} to take images from; install it, or pack where there is one.")
    return here


def _holder(name: str, engines: Sequence[Engine]) -> Engine:
    names: list[str] = []
    for engine in engines:
        try:
            if engine.inspect("image", name) is not None:
                return engine
            names += engine.images()
        except Unavailable:
            if len(engines) == 1:
                raise  # One that is off, beside another, has nothing to give.
    raise Refused(
        f"{' and '.join(engine.name.value for engine in engines)} here has no image {quoted(name)}"
        f"{nearest(name, names)}; pull, load or build it first"
    )
