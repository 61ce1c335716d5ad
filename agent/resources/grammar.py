"""What the text of a field must look like: paths, owners, hosts, packages, ports, commands.

What reaches another program (a package's name, a host's) can't be taken there for anything but a name.
Secrets and fingerprints stay to be filled where `late` reads; a secret never in a command, which every user
of the machine sees.
"""

from __future__ import annotations

import ipaddress
import posixpath
import re
from dataclasses import replace
from pathlib import Path

from agent import template
from agent.errors import Refused
from agent.fields import REQUIRED, Fields, dns_label, quoted
from agent.resources.model import LATE_KINDS
from agent.resources.ports import EVERY_ADDRESS, Port, parse_port
from agent.resources.specs import LARGEST_SECRET, Bind, Mount, Published, Volume
from agent.template import Template

_MODE = re.compile(r"0?[0-7]{3,4}")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_OWNER = re.compile(rf"{_USER.pattern}(:{_USER.pattern})?")
# Debian policy 5.6.1, but no last hyphen: apt-get would remove the package that is called so without it.
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]{0,126}[a-z0-9+.]")
_UNIT = re.compile(r"[A-Za-z0-9][A-Za-z0-9:_.@-]{0,200}\.(service|socket|timer|path|target)")
_HOST = re.compile(
    r"(\*\.)?([A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?\.)*[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
)
_ADDRESS = re.compile(r"[0-9.]+|.*:.*")
_PUBLISHED = re.compile(r"((?:(?:\[[^]]*\]|[^:\[\]]*):)?[0-9]{1,5}):([0-9]{1,5})((?:/[a-z]+)?)")
_PUBLISHED_FORM = "[ADDRESS:]HOST:CONTAINER[/PROTOCOL], as in 127.0.0.1:8080:80/tcp"
# What both engines take: distribution's reference grammar, and the names of volumes and labels.
_IMAGE = re.compile(
    r"([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?/)?"
    r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*"
    r"(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?"
)
_VOLUME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{1,127}")
_ANONYMOUS = re.compile(r"[0-9a-f]{64}")
LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,126}[A-Za-z0-9])?")
_ENGINES_NETWORKS = {"bridge", "container", "default", "none", "ns", "pasta", "podman", "private", "slirp4netns"}
_MEMORY = re.compile(r"([0-9]{1,15})([bkmgBKMG]?)")
_UNITS = {"": 0, "b": 0, "B": 0, "k": 10, "K": 10, "m": 20, "M": 20, "g": 30, "G": 30}
_LEAST_MEMORY = 6 << 20
_CPUS = re.compile(r"[0-9]{1,4}(\.[0-9]{1,3})?")
# Linux's limits in bytes: NAME_MAX, and PATH_MAX without its last zero.
_LONGEST_NAME, _LONGEST_PATH = 255, 4095


def finished(text: str, where: str) -> str:
    """The text of a template in which nothing may be left to fill."""
    return template.parse(text, where).text(where)


def plain(fields: Fields, name: str, default: str | object = REQUIRED) -> str:
    """A field in which nothing may be left to fill."""
    return finished(fields.text(name, default), fields.path(name))


def late(text: str, where: str) -> Template:
    """A string that may still hold secrets and fingerprints, and nothing else."""
    parsed = template.parse(text, where)
    for name in sorted(parsed.references):
        group, _, rest = name.partition(".")
        if group not in LATE_KINDS or not rest or "." in rest:
            raise template.unknown(name, where, {"state": "", "agent": ""})
    return parsed


def word(text: str, where: str) -> Template:
    """As `late`, for what a process is given: C's strings end at a zero."""
    if "\0" in text:
        raise Refused(f"{where}: {quoted(text)} holds a zero character, which no argument or variable can")
    return late(text, where)


def command(fields: Fields, field: str = "command") -> tuple[Template, ...]:
    """`command`: the program and its arguments."""
    words = tuple(word(text, fields.path(field)) for text in fields.texts(field))
    if not words or not words[0].parts:
        raise fields.wrong(field, "is empty; it must hold the program and its arguments")
    for name in sorted(frozenset().union(*(one.references for one in words))):
        if name.startswith("secret."):
            why = f"every user of the machine could read ${{{name}}} there; use the environment or a file"
            raise fields.wrong(field, why)
    return words


def absolute_path(text: str, where: str) -> Path:
    """An absolute, normal path (no `..`, no `//`, no last slash, not the root) that the kernel takes."""
    if text.startswith("//") or text == "/" or not text.startswith("/") or posixpath.normpath(text) != text:
        raise Refused(f"{where}: {quoted(text)} is no absolute, normal path; write it in full, without .. or a last /")
    if not text.isprintable():
        raise Refused(f"{where}: {quoted(text)} holds a character that can't be seen; no path of ours may")
    encoded = text.encode("utf-8")
    if len(encoded) > _LONGEST_PATH or max(map(len, encoded.split(b"/"))) > _LONGEST_NAME:
        raise Refused(
            f"{where}: {quoted(text)} is too long; a name in a path has {_LONGEST_NAME} bytes at most, "
            f"a path {_LONGEST_PATH}"
        )
    return Path(text)


def label(fields: Fields, name: str) -> str:
    """A resource's name that is a DNS label."""
    return dns_label(name, f"{fields.path('name')}:")


def mode(fields: Fields, default: str) -> int:
    """`mode`: permission bits in octal digits."""
    text = plain(fields, "mode", default)
    if not _MODE.fullmatch(text):
        raise fields.wrong("mode", f'{quoted(text)} is no file mode; write it in octal, as in "0644"')
    return int(text, 8)


def owner(fields: Fields, field: str = "owner", default: str = "root") -> str:
    """`owner`: USER or USER:GROUP."""
    text = plain(fields, field, default)
    if text != default and not _OWNER.fullmatch(text):
        raise fields.wrong(field, f"{quoted(text)} is no {field}; write USER or USER:GROUP")
    return text


def user(fields: Fields) -> str:
    """`user`: whom a service runs as, with the groups that the machine gives that user."""
    text = plain(fields, "user", "root")
    if not _USER.fullmatch(text):
        raise fields.wrong("user", f"{quoted(text)} is no user's name; write it without a group")
    return text


def ports(fields: Fields) -> tuple[Port, ...]:
    """`ports`: each written once; a bare number may be a number."""
    where = fields.path("ports")

    def read(value: object, place: str) -> Port:
        if isinstance(value, int) and not isinstance(value, bool):
            return parse_port(str(value), place)
        if not isinstance(value, str):
            raise Refused(f"{place}: a port is written as a string, [ADDRESS:]PORT[/PROTOCOL]")
        return parse_port(finished(value, place), place)

    listed = fields.each("ports", (), read)
    for at, port in enumerate(listed):
        for other in listed[:at]:
            if port.overlaps(other):
                raise Refused(f"{where}: {port} and {other} are the same port twice")
    return listed


def published(fields: Fields) -> tuple[Published, ...]:
    """`ports` of a container: `[ADDRESS:]HOST:CONTAINER[/PROTOCOL]`, each host port once.

    Without an address it is every IPv4 address: engines fail at [::] where IPv6 is off.
    """
    where = fields.path("ports")

    def read(value: object, place: str) -> Published:
        if not isinstance(value, str):
            raise Refused(f"{place}: a published port is written as a string, {_PUBLISHED_FORM}")
        match = _PUBLISHED.fullmatch(finished(value, place))
        if not match or not 1 <= int(match[2]) <= 65535:
            raise Refused(f"{place}: {quoted(value)} is no published port; write {_PUBLISHED_FORM}")
        host = parse_port(match[1] + match[3], place)
        if host.address == EVERY_ADDRESS:
            host = replace(host, address="0.0.0.0")
        return Published(host, int(match[2]))

    listed = fields.each("ports", (), read)
    for at, port in enumerate(listed):
        for other in listed[:at]:
            if port.host.overlaps(other.host):
                raise Refused(f"{where}: {port.host} and {other.host} are the same port twice")
    return listed


def mounts(fields: Fields) -> tuple[Mount, ...]:
    """`mounts`: `SOURCE:TARGET[:ro]`, SOURCE an absolute path or a volume's name; each target once."""
    where = fields.path("mounts")
    listed = tuple(_mount(finished(text, where), where) for text in fields.texts("mounts", ()))
    for at, mount in enumerate(listed):
        if any(mount.target == other.target for other in listed[:at]):
            raise Refused(f"{where}: two mounts have the target {mount.target}")
    return listed


def image(text: str, where: str) -> str:
    """An image's name as engines take it: `[HOST[:PORT]/]NAME[:TAG][@sha256:DIGEST]`."""
    if len(text) > 255 or not _IMAGE.fullmatch(text):
        raise Refused(f"{where}: {quoted(text)} is no image's name, as in docker.io/library/debian:12")
    return text


def network(fields: Fields, name: str) -> str:
    """The name of a network that is made when absent; not one that an engine has of itself."""
    if name in _ENGINES_NETWORKS:
        why = f"{quoted(name)} is the engine's own; leave it out for the default network, or choose another name"
        raise fields.wrong("network", why)
    return dns_label(name, f"{fields.path('network')}:")


def memory(fields: Fields) -> int:
    """`memory`: bytes, as a number or with a unit of 1024s, b, k, m or g; 6 MiB is the least that engines take."""
    if isinstance(fields.raw("memory"), int):
        return fields.integer("memory", least=_LEAST_MEMORY)
    match = _MEMORY.fullmatch(plain(fields, "memory"))
    if not match or int(match[1]) << _UNITS[match[2]] < _LEAST_MEMORY:
        raise fields.wrong("memory", 'must be a number of bytes, 6 MiB at least; write it as in "512m"')
    return int(match[1]) << _UNITS[match[2]]


def cpus(fields: Fields) -> str:
    """`cpus`: how many processors' time, as a decimal number (a string or a number)."""
    value = fields.raw("cpus")
    text = plain(fields, "cpus") if isinstance(value, str) else repr(value)
    if not _CPUS.fullmatch(text) or not float(text):
        raise fields.wrong("cpus", 'must be a number above 0 with three decimals at most, as in "1.5"')
    return text


def connectable(text: str, where: str) -> Port:
    """A TCP port that can be connected to; one of every address is reached at 127.0.0.1."""
    port = parse_port(text, where)
    if port.protocol != "tcp":
        raise Refused(f"{where}: {quoted(text)} is no TCP port, and only to one of those can be connected")
    return replace(port, address="127.0.0.1") if port.address == EVERY_ADDRESS else port


def host(text: str, where: str) -> str:
    """A host's name (`*.` may stand before it) or an IP address in its usual spelling."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError as error:
        # What ends in a number is an address to whoever connects, so it must be one that exists.
        if len(text) <= 253 and _HOST.fullmatch(text) and not text.rpartition(".")[2].isdigit():
            return text
        raise Refused(f"{where}: {quoted(text)} is neither a host name nor an IP address") from error
    if "%" in text:
        raise Refused(f"{where}: {quoted(text)} names an interface; leave out what follows the %")
    return str(address)


def host_name(text: str, where: str) -> str:
    """A machine's own name (hostname(7)): a host's, of 63 characters at most, and no address."""
    if len(text) > 63 or text.startswith("*") or host(text, where) != text or _ADDRESS.fullmatch(text):
        raise Refused(f"{where}: {quoted(text)} is no name that a machine could have")
    return text


def package(fields: Fields, name: str) -> str:
    """A distribution package's name."""
    if not _PACKAGE.fullmatch(name):
        why = f"{quoted(name)} is no package's name; write it without version or architecture"
        raise fields.wrong("name", why)
    return name


def secret_value(data: bytes, where: str) -> str:
    """A value that the mesh keeps for its nodes: text that any file, and any variable of a program, can hold.

    Refused when it isn't; the refusal shows nothing of it.
    """
    if not data:
        raise Refused(f"{where} is empty")
    if len(data) > LARGEST_SECRET:
        raise Refused(f"{where} has more than {LARGEST_SECRET} bytes, which is the most that a secret can have")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise Refused(f"{where} is not UTF-8 text; write it down as text, in base64 for example") from None
    if "\0" in text:
        raise Refused(f"{where} holds a zero character, which no variable of a program can")
    return text


def unit(text: str, where: str) -> str:
    """A systemd unit's full name."""
    if not _UNIT.fullmatch(text):
        raise Refused(f"{where}: {quoted(text)} is no systemd unit's full name, as in x.service")
    return text


def _mount(text: str, where: str) -> Mount:
    parts = text.split(":")
    if len(parts) not in (2, 3) or parts[2:] not in ([], ["ro"]):
        raise Refused(f"{where}: {quoted(text)} is no mount; write SOURCE:TARGET or SOURCE:TARGET:ro")
    source, target = parts[0], absolute_path(parts[1], where)
    read_only = len(parts) == 3
    if source.startswith("/"):
        return Bind(Path("/") if source == "/" else absolute_path(source, where), target, read_only)
    if not _VOLUME.fullmatch(source) or _ANONYMOUS.fullmatch(source):
        raise Refused(f"{where}: {quoted(source)} is neither an absolute path nor a volume's name")
    return Volume(source, target, read_only)
