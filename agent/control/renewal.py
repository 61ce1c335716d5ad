"""Another certificate of the broker's in the place of one, so that nobody is locked out, or is named beforehand.

- The next pair is made beside the current one. Its pin goes out in every declaration and token, long before it is used.
- The swap is refused while a node hasn't reported a declaration that told it, or a token of before can be used, unless
  it is forced.
- What raised the broker sees other files, restarts it and writes its new pin into control.toml; the control plane that
  starts with that drops the old one.
"""

from __future__ import annotations

import hashlib
import logging
import re
import ssl
from dataclasses import dataclass
from pathlib import Path

from agent.control.config import Settings
from agent.control.declaring import tell
from agent.control.registry import Node
from agent.control.signing import Keyring, read_keyring
from agent.control.store import Store
from agent.errors import Refused
from agent.host import commands, files
from agent.kinds.certificate import Action, Certificate
from agent.kinds.kind import Machine, Mark, Plan, Verb, Wanted
from agent.resources import Context, open_declaration, parse_resource, read_declaration

_log = logging.getLogger(__name__)

_NAMES = re.compile(r"(?:DNS|IP Address):([^,\s]+)")


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, by their files. `pin` is the SHA-256 of the certificate's DER."""

    certificate: Path
    key: Path
    pin: str


@dataclass(frozen=True, slots=True)
class Unaware:
    """Who would be locked out: `nodes` that have yet to report that they know the next pin, and the nodes of `tokens`
    that were made before it and can still be used.
    """

    nodes: tuple[str, ...]
    tokens: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.nodes or self.tokens)


def current_pair(state: Path, settings: Settings) -> Pair:
    """The pair that the broker shows. Refused when it isn't below the state folder, or not any more."""
    pin, *following = settings.fingerprints
    found: dict[str | None, Path] = {}
    # The current one's name is the shorter: while a swap is cut short the next one's files are the same.
    for path in sorted((state / "secrets").glob("*/*.crt"), key=lambda path: len(path.name)):
        if path.with_suffix(".key").exists():
            found.setdefault(_pin(path), path)
    if pin in found:
        return Pair(found[pin], found[pin].with_suffix(".key"), pin)
    if any(one in found for one in following):
        raise Refused(
            "The next certificate is in its place already, and the broker was not restarted with it yet: the agent "
            "here does that within five minutes, or `agent up`, if none runs."
        )
    raise Refused(
        f"No certificate below {state / 'secrets'} is the one that nodes know the broker by ({pin}); whoever made that "
        "one has to renew it."
    )


def begin(state: Path, store: Store, settings: Settings, now: float) -> str:
    """Make the next pair, unless that was done before, and tell every node of it; the next pin."""
    current = current_pair(state, settings)
    following = _next_pair(state, current)
    with store.transaction():
        store.settings.set_pins((current.pin, following.pin), now)
        keys = read_keyring(state, store)
        for node in store.nodes.all():
            _tell(store, keys, node, following.pin, now)
    return following.pin


def unaware(state: Path, store: Store, pin: str, now: float, *, founder: str) -> Unaware:
    """Who doesn't know the next pin yet; a node that wasn't told is told now. The `founder` finds another token where
    its control plane leaves them.
    """
    with store.transaction():
        keys = read_keyring(state, store)
        nodes = [node for node in store.nodes.all() if not _knows(store, node.name, node.holds, pin)]
        for node in nodes:
            _tell(store, keys, node, pin, now)
        tokens = sorted(
            token.node
            for token in store.tokens.live()
            if token.node != founder
            and token.spending is None
            and token.made < store.settings.pinned
            and now < token.expires
        )
    return Unaware(tuple(node.name for node in nodes), tuple(tokens))


def swap(state: Path, store: Store, settings: Settings) -> None:
    """Put the next pair in the current one's place. Refused when none was made."""
    current = current_pair(state, settings)
    following = _next_pair(state, current, make=False)
    if store.settings.pins != (current.pin, following.pin):
        raise Refused("Nodes were not told of the next certificate yet; run `agent control cert renew`.")
    for source, target in ((following.key, current.key), (following.certificate, current.certificate)):
        owner, mode = target.parent.stat(), target.stat().st_mode & 0o777
        content = files.read(source, uid=owner.st_uid)
        assert content is not None
        files.write(target, content, mode=mode, uid=owner.st_uid, gid=owner.st_gid)
    _remove(following)


def finish(state: Path, store: Store, settings: Settings, now: float) -> None:
    """Drop the old pin once the broker is known by the next one alone."""
    pins = store.settings.pins
    if len(pins) < 2 or settings.fingerprints[0] != pins[-1]:
        return
    with store.transaction():
        store.settings.set_pins(pins[-1:], now)
        keys = read_keyring(state, store)
        for node in store.nodes.all():
            try:
                tell(store, keys, node, now)
            except Refused as error:  # it knows the pin that counts, which is all that is needed
                _log.warning("%s can't be told that the old certificate counts no more: %s", node.name, error)


def _next_pair(state: Path, current: Pair, *, make: bool = True) -> Pair:
    name, owner = f"{current.certificate.stem}-next", current.certificate.parent.name
    certificate = current.certificate.with_name(f"{name}.crt")
    key = certificate.with_suffix(".key")
    if certificate.exists() and _pin(certificate) == current.pin:
        _remove(Pair(certificate, key, current.pin))  # a swap was cut short when all but this was done
    if not (certificate.exists() and key.exists()):
        if not make:
            raise Refused("There is no next certificate; run `agent control cert renew`.")
        fields = {"kind": "certificate", "name": name, "owner": owner, "hosts": list(_hosts(current.certificate))}
        resource = parse_resource(fields, "renewal", Context(state))
        wanted = Wanted(resource, resource.digest)
        mark = Mark(str(state), resource.id, found=False, stamp=resource.digest)
        machine = Machine(state, b"", lambda _: iter(()))
        Certificate().apply(wanted, Plan(Verb.CREATE, "it is the next one", (Action.MAKE,)), mark, machine)
    pin = _pin(certificate)
    if pin is None:
        raise Refused(f"{certificate} holds no certificate; take it and its key away, and try again.")
    return Pair(certificate, key, pin)


def _remove(pair: Pair) -> None:
    for path in (pair.key, pair.certificate):
        if path.exists():
            files.remove(path, uid=path.parent.stat().st_uid)


def _hosts(certificate: Path) -> tuple[str, ...]:
    told = commands.run(["openssl", "x509", "-in", str(certificate), "-noout", "-ext", "subjectAltName"]).stdout
    return tuple(_NAMES.findall(told.decode("ascii", "replace"))) or ("localhost",)


def _pin(certificate: Path) -> str | None:
    try:
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate.read_text("ascii"))).hexdigest()
    except (OSError, ValueError):
        return None


def _tell(store: Store, keys: Keyring, node: Node, pin: str, now: float) -> None:
    if not _knows(store, node.name, node.wanted, pin):
        tell(store, keys, node, now)


def _knows(store: Store, node: str, serial: int | None, pin: str) -> bool:
    """Whether the declaration of this serial told a node of a pin."""
    told = store.declarations.find(node, serial) if serial else None
    trust = read_declaration(open_declaration(told.data)).trust if told else None
    return trust is not None and pin in trust.fingerprints
