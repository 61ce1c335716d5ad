"""A certificate: a self-signed pair, made once by openssl; those who connect pin its fingerprint.

- The key never stands in an argument, nor on a disk but in its own file, which only its owner can read.
- The key is written first, so a certificate without one was never whole. Half of a pair that was never finished is
  made anew; half of a finished one is lost, which is a failure in words.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from agent.errors import Unavailable
from agent.host import accounts, commands, files
from agent.kinds import marks, places, vault
from agent.kinds.kind import Held, Machine, Mark, Plan, Removal, Standing, Verb, Wanted
from agent.kinds.places import Thing
from agent.resources import Resource, specs

_CERTIFICATE_MODE = 0o644
_KEY_MODE = 0o600
_BLOCK = re.compile(rb"-----BEGIN ([A-Z ]+)-----\n.*?\n-----END \1-----\n", re.DOTALL)
# Not the machine's own configuration: it may be missing, and it makes every certificate an authority's.
_CONFIGURATION = """\
[req]
prompt = no
distinguished_name = subject
x509_extensions = extensions
[subject]
CN = {name}
[extensions]
basicConstraints = critical,CA:FALSE
keyUsage = critical,digitalSignature
extendedKeyUsage = serverAuth
{names}"""


@dataclass(frozen=True, slots=True)
class Observed:
    """The owner's folder and both files (None: absent), whether they belong together, and the owner: (uid, gid)."""

    folder: Thing | None
    certificate: Thing | None
    key: Thing | None
    paired: bool
    owner: tuple[int, int]


class Action(Enum):
    """What there is to do."""

    MAKE = "make"
    DRESS = "dress"


class Certificate:
    """The kind `certificate`."""

    def check(self, spec: specs.Certificate, machine: Machine, earlier: Sequence[Resource]) -> None:
        vault.check_owner(spec.owner, earlier)
        if commands.find("openssl") is None and not any(one.kind == "package" for one in earlier):
            raise Unavailable("A certificate is made by openssl, which is not on this machine; install it.")

    def observe(self, wanted: Wanted, machine: Machine) -> Observed:
        spec = _spec(wanted.resource)
        folder = vault.look_at_folder(spec.key)
        certificate, key = vault.look(spec.certificate, folder), vault.look(spec.key, folder)
        return Observed(
            folder=folder,
            certificate=certificate,
            key=key,
            paired=certificate is not None and key is not None and _belong_together(spec),
            owner=accounts.owner_ids(spec.owner),
        )

    def standing(self, observed: Observed) -> Standing:
        return Standing.MADE if observed.certificate or observed.key else Standing.ABSENT

    def plan(self, wanted: Wanted, observed: Observed, held: Held | None) -> Plan[Action]:
        certificate, key = observed.certificate, observed.key
        if certificate is None and key is None and not (held and held.stamp):
            return Plan(Verb.CREATE, "not there yet", (Action.MAKE,))
        if not observed.paired and held and not held.stamp:
            return Plan(Verb.CREATE, "it was half made", (Action.MAKE,))
        spec = _spec(wanted.resource)
        if certificate is None or key is None:
            raise vault.lost(wanted.resource, spec.key if key is None else spec.certificate)
        if not observed.paired:
            raise Unavailable(
                f"{spec.certificate} and {spec.key} don't belong together; put the right ones back from a copy, or "
                f"make both anew with `agent up --remake {wanted.resource.id}`."
            )
        drift = (
            certificate.drift(_CERTIFICATE_MODE, observed.owner)
            or key.drift(_KEY_MODE, observed.owner)
            or vault.folder_drift(observed.folder, observed.owner)
        )
        if drift:
            return Plan(Verb.CHANGE, drift, (Action.DRESS,))
        if held is None or not held.stamp:
            return Plan(Verb.ADOPT, "it was made here before")
        return Plan(Verb.KEEP)

    def preserve(self, wanted: Wanted, observed: Observed, machine: Machine) -> None:
        """Nothing is found in the agent's own folder."""

    def apply(self, wanted: Wanted, plan: Plan[Action], mark: Mark, machine: Machine) -> None:
        spec = _spec(wanted.resource)
        uid, gid = owner = accounts.owner_ids(spec.owner)
        written = marks.encode(mark)
        if plan.actions:
            vault.make_folder(spec.key, owner)
        if Action.MAKE in plan.actions:
            certificate, key = _make(wanted.resource.name, spec)
            files.write(spec.key, key, mode=_KEY_MODE, uid=uid, gid=gid, mark=written)
            files.write(spec.certificate, certificate, mode=_CERTIFICATE_MODE, uid=uid, gid=gid, mark=written)
        else:
            places.dress(spec.key, mode=_KEY_MODE, uid=uid, gid=gid, mark=written)
            places.dress(spec.certificate, mode=_CERTIFICATE_MODE, uid=uid, gid=gid, mark=written)

    def remove(self, resource: Resource, held: Held, machine: Machine, *, data: bool) -> Removal:
        spec = _spec(resource)
        if not data and held.stamp:
            return Removal(f"{spec.certificate} and {spec.key} were kept, because others may have pinned them.")
        vault.remove([spec.certificate, spec.key])
        return Removal()

    def value(self, spec: specs.Certificate, machine: Machine) -> str | None:
        """The lower-case hexadecimal SHA-256 of the certificate's DER, as brokers and browsers show it."""
        import ssl  # slow to load, and needed only where a certificate is

        content = vault.read(spec.certificate)
        if content is None:
            return None
        try:
            der = ssl.PEM_cert_to_DER_cert(content.decode("ascii"))
        except ValueError as error:
            raise Unavailable(
                f"{spec.certificate} doesn't hold a certificate; put it back from a copy, or make it anew with "
                f"`agent up --remake certificate:{spec.certificate.stem}`."
            ) from error
        return hashlib.sha256(der).hexdigest()


def _make(name: str, spec: specs.Certificate) -> tuple[bytes, bytes]:
    """A new pair: (certificate, key), both PEM."""
    names = ",".join(f"{_name_type(host)}:{host}" for host in spec.hosts)
    configuration = _CONFIGURATION.format(name=name, names=f"subjectAltName = {names}\n" if names else "")
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    argv += ["-sha256", "-days", str(spec.days), "-config", "/dev/stdin", "-keyout", "-", "-out", "-"]
    output = commands.run(argv, stdin=configuration.encode("ascii")).stdout
    blocks = {match[1]: match[0] for match in _BLOCK.finditer(output)}
    try:
        return blocks[b"CERTIFICATE"], blocks[b"PRIVATE KEY"]
    except KeyError as error:
        raise Unavailable("openssl ended well but gave no key or no certificate.") from error


def _name_type(host: str) -> str:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return "DNS"
    return "IP"


def _belong_together(spec: specs.Certificate) -> bool:
    import ssl  # slow to load, and needed only where a certificate is

    try:
        # The password is for a key that asks for one: ours doesn't, and nobody is there to be asked.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(spec.certificate, spec.key, password="")
    except (OSError, ValueError):  # ssl.SSLError is an OSError
        return False
    return True


def _spec(resource: Resource) -> specs.Certificate:
    assert isinstance(resource.spec, specs.Certificate)
    return resource.spec
