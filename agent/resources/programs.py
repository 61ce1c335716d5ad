"""What runs, read from the fields of one object: service, image, container; and `reserved`, for programs not ours."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from agent.errors import Refused
from agent.fields import Fields, quoted
from agent.resources import files, grammar
from agent.resources.model import Context
from agent.resources.specs import (
    Bridge,
    CommandReady,
    Container,
    EngineName,
    FileReady,
    HostNetwork,
    Image,
    Limits,
    LoginReady,
    Readiness,
    Ready,
    Reserved,
    Service,
    TcpReady,
)
from agent.template import Template
from agent.wire import broker_address

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# How a service's processes are told from all others.
_OUR_VARIABLES = "AGENT_SERVICE"
_OUR_LABELS = "mesh-agent"
# An engine's command reads these itself, so that none can carry a secret through it to the container.
_ENGINES_VARIABLES = re.compile(r"PATH|HOME|USER|LOGNAME|LANG|TMPDIR|(LC|LD|XDG|GO|DOCKER|CONTAINERS?|PODMAN)_?[A-Z_]*")


def service(fields: Fields, name: str, context: Context) -> Service:
    """`service`: a command; NAME is its unit's."""
    environment = _environment(fields)
    for key, _ in environment:
        if key.startswith(_OUR_VARIABLES):
            why = f"{quoted(key)} is the agent's own, by which it finds the service again"
            raise fields.wrong("environment", why)
    return Service(
        name=grammar.label(fields, name),
        command=grammar.command(fields),
        user=grammar.user(fields),
        environment=environment,
        directory=_any_path(grammar.plain(fields, "directory", "/"), fields.path("directory")),
        ports=grammar.ports(fields),
        ready=_ready(fields.table("ready")),
        watches=_watches(fields),
        stop_signal=_stop_signal(fields),
        stop_timeout=fields.integer("stop_timeout", 30, least=1, most=3600),
    )


def image(fields: Fields, name: str, context: Context) -> Image:
    """`image`: NAME is the image's; with `blob`, from the archive that the bundle carries."""
    return Image(
        name=grammar.image(name, fields.path("name")),
        archive=files.blob(fields, context) if "blob" in fields else None,
        engine=_engine(fields),
    )


def container(fields: Fields, name: str, context: Context) -> Container:
    """`container`: NAME is its own in the engine."""
    environment = _environment(fields)
    for key, value in environment:
        if value.references and _ENGINES_VARIABLES.fullmatch(key):
            why = f"{quoted(key)} means something to the engine as well, so it can't hold a secret or fingerprint"
            raise fields.wrong("environment", why)
    labels = fields.text_table("labels")
    where = fields.path("labels")
    for key in labels:
        if not grammar.LABEL.fullmatch(key):
            raise fields.wrong("labels", f"{quoted(key)} is no label's name")
        if key.startswith(_OUR_LABELS):
            raise fields.wrong("labels", f"{quoted(key)} is the agent's own, by which it knows its containers")
    restart = grammar.plain(fields, "restart", "always")
    if restart not in ("no", "on-failure", "unless-stopped", "always"):
        raise fields.wrong("restart", f"{quoted(restart)} is none of no, on-failure, unless-stopped, always")
    return Container(
        name=grammar.label(fields, name),
        engine=_engine(fields),
        image=grammar.image(grammar.plain(fields, "image"), fields.path("image")),
        entrypoint=grammar.command(fields, "entrypoint") if "entrypoint" in fields else (),
        command=grammar.command(fields) if "command" in fields else (),
        environment=environment,
        mounts=grammar.mounts(fields),
        network=_network(fields),
        user=grammar.owner(fields, "user", ""),
        hostname=_hostname(fields),
        labels=tuple((key, grammar.finished(value, f"{where}.{key}")) for key, value in sorted(labels.items())),
        limits=_limits(fields.table("limits")),
        restart=restart,
        ready=_ready(fields.table("ready")),
        watches=_watches(fields),
        stop_signal=_stop_signal(fields),
        stop_timeout=fields.integer("stop_timeout", 30, least=1, most=3600),
    )


def reserved(fields: Fields, name: str, context: Context) -> Reserved:
    """`reserved`: nothing but ports, which the machine's own programs hold."""
    grammar.label(fields, name)
    ports = grammar.ports(fields)
    if not ports:
        raise fields.wrong("ports", "is missing; a reservation without ports reserves nothing")
    return Reserved(ports)


def _environment(fields: Fields) -> tuple[tuple[str, Template], ...]:
    where = fields.path("environment")
    values = fields.text_table("environment")
    for key in values:
        if not _VARIABLE.fullmatch(key):
            raise fields.wrong("environment", f"{quoted(key)} is no variable's name")
    return tuple((key, grammar.word(value, f"{where}.{key}")) for key, value in sorted(values.items()))


def _watches(fields: Fields) -> tuple[Path, ...]:
    where = fields.path("watches")
    return tuple(grammar.absolute_path(grammar.finished(path, where), where) for path in fields.texts("watches", ()))


def _stop_signal(fields: Fields) -> str:
    text = grammar.plain(fields, "stop_signal", "SIGTERM")
    if text not in signal.Signals.__members__:
        raise fields.wrong("stop_signal", f"there is no signal {quoted(text)}; write it as in SIGTERM")
    return text


def _ready(fields: Fields | None) -> Ready | None:
    if fields is None:
        return None
    given = [name for name in ("tcp", "command", "file", "login") if name in fields]
    timeout = fields.integer("timeout", 60, least=1, most=3600)
    if len(given) != 1:
        fields.finish()  # a misspelt one is the better thing to say
        raise Refused(f"{fields.where}: has exactly one of tcp, command, file and login")
    when: Readiness
    login = fields.table("login")
    if "tcp" in given:
        when = TcpReady(grammar.connectable(grammar.plain(fields, "tcp"), fields.path("tcp")))
    elif "command" in given:
        when = CommandReady(grammar.command(fields))
    elif login is None:
        when = FileReady(grammar.absolute_path(grammar.plain(fields, "file"), fields.path("file")))
    else:
        when = LoginReady(
            address=broker_address(grammar.plain(login, "address"), login.path("address")),
            account=_account(login),
            password=grammar.late(login.text("password"), login.path("password")),
            fingerprint=grammar.late(login.text("fingerprint"), login.path("fingerprint")),
        )
        login.finish()
    fields.finish()
    return Ready(when, timeout)


def _account(login: Fields) -> str:
    text = grammar.plain(login, "account")
    if not text or not text.isprintable():
        raise login.wrong("account", f"{quoted(text)} is no account's name")
    return text


def _engine(fields: Fields) -> EngineName | None:
    text = grammar.plain(fields, "engine", "")
    names = {name.value: name for name in EngineName}
    if text and text not in names:
        raise fields.wrong("engine", f"there is no engine {quoted(text)}; it is podman or docker")
    return names.get(text)


def _network(fields: Fields) -> HostNetwork | Bridge:
    name = grammar.plain(fields, "network", "")
    if name == "host":
        return HostNetwork(grammar.ports(fields))
    if name:
        grammar.network(fields, name)
    return Bridge(name, grammar.published(fields))


def _hostname(fields: Fields) -> str:
    text = grammar.plain(fields, "hostname", "")
    return grammar.host_name(text, fields.path("hostname")) if text else ""


def _limits(fields: Fields | None) -> Limits:
    if fields is None:
        return Limits()
    limits = Limits(
        memory=grammar.memory(fields) if "memory" in fields else None,
        cpus=grammar.cpus(fields) if "cpus" in fields else None,
        pids=fields.integer("pids", least=1, most=4_194_304) if "pids" in fields else None,
        nofile=fields.integer("nofile", least=1, most=2**30) if "nofile" in fields else None,
    )
    fields.finish()
    return limits


def _any_path(text: str, where: str) -> Path:
    return Path("/") if text == "/" else grammar.absolute_path(text, where)
