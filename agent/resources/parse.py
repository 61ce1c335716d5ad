"""From one object of a list to one resource: templates filled, fields typed, nothing unknown left."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

from agent import template
from agent.errors import Refused
from agent.fields import Fields, JsonValue, canonical, field_path, nearest, quoted
from agent.resources import grammar
from agent.resources.model import Context, Resource, secret_folder, sent_beside
from agent.resources.specs import (
    LARGEST_SECRET,
    SEAL_BYTES,
    Bridge,
    Certificate,
    CommandReady,
    Container,
    Directory,
    EngineName,
    File,
    FileReady,
    FromBlob,
    HostNetwork,
    Image,
    Inline,
    Limits,
    LoginReady,
    Package,
    Random,
    Readiness,
    Ready,
    Reserved,
    Sealed,
    Secret,
    Service,
    Spec,
    TcpReady,
)
from agent.template import Template
from agent.wire import broker_address

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# How a service's processes are told from all others.
_OUR_VARIABLES = "AGENT_SERVICE"
_OUR_LABELS = "mesh-agent"
_PACKAGE_FILES = (".deb", ".rpm", ".apk")
# An engine's command reads these itself, so that none can carry a secret through it to the container.
_ENGINES_VARIABLES = re.compile(r"PATH|HOME|USER|LOGNAME|LANG|TMPDIR|(LC|LD|XDG|GO|DOCKER|CONTAINERS?|PODMAN)_?[A-Z_]*")


def parse_resource(item: object, where: str, context: Context) -> Resource:
    """One resource from one JSON or TOML object; `where` is its place in the list.

    Refused when it doesn't validate.
    """
    values = fill_item(Fields(item, where).values(), where, context.known)
    _read_template_blob(values, where, context)
    fields = Fields(values, where)
    kind, name = fields.text("kind"), grammar.plain(fields, "name")
    parse = _PARSERS.get(kind)
    if parse is None:
        raise fields.wrong("kind", f"there is no kind {quoted(kind)}{nearest(kind, _PARSERS)}")
    needs = tuple(grammar.finished(need, f"{where}.needs") for need in fields.texts("needs", ()))
    role = fields.text("role", "")
    if role not in ("", "founder"):
        raise fields.wrong("role", f"{quoted(role)} is no role; the only one is founder")
    spec = parse(fields, name, context)
    fields.finish()
    source = {key: value for key, value in values.items() if key not in ("needs", "role")}
    source.update(_digests(spec))
    return Resource(kind, name, spec, needs, canonical(source), founder_only=role == "founder")


def fill_item(item: Mapping[str, JsonValue], where: str, values: Mapping[str, str]) -> dict[str, JsonValue]:
    """The same object with what `values` knows filled into its strings; the rest stays to be filled later."""
    return map_item(item, where, lambda one, place: _filled(one, place, values))


def map_item(
    item: Mapping[str, JsonValue], where: str, change: Callable[[Template, str], Template]
) -> dict[str, JsonValue]:
    """The same object with every template in it changed; `change` gets a template and its place.

    A file's content takes part only if it says `template = true`, and a kind never does: it decides that.
    """
    verbatim = {"kind"}
    if item.get("kind") == "file" and item.get("template") is not True:
        verbatim.add("content")
    return {
        key: value if key in verbatim else _map(value, field_path(where, key), change) for key, value in item.items()
    }


def late_references(spec: Spec) -> frozenset[str]:
    """The secrets and fingerprints that this resource is filled with when applied: `secret.NAME` and so on."""
    return frozenset().union(*(template.references for template in _templates(spec)))


def _map(value: JsonValue, where: str, change: Callable[[Template, str], Template]) -> JsonValue:
    if isinstance(value, str):
        return change(template.parse(value, where), where).encode()
    if isinstance(value, list):
        return [_map(item, f"{where}[{at}]", change) for at, item in enumerate(value)]
    if isinstance(value, dict):
        return {key: _map(item, field_path(where, key), change) for key, item in value.items()}
    return value


def _filled(one: Template, where: str, values: Mapping[str, str]) -> Template:
    filled = one.fill(values)
    for name in sorted(filled.references):
        if name.startswith("param."):
            raise template.unknown(name, where, values)
    return filled


def _read_template_blob(values: dict[str, JsonValue], where: str, context: Context) -> None:
    """A blob that is a template becomes inline content, so that what is filled into it is seen and hashed."""
    blob = values.get("blob")
    if values.get("content") is not None:  # one of the two too many, as will be said
        return
    if values.get("kind") != "file" or values.get("template") is not True or not isinstance(blob, str):
        return
    if context.blobs.facts(blob) is None:
        raise Refused(f"{where}.blob: there is no blob {quoted(blob)} beside this list")
    try:
        text = context.blobs.read(blob).decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refused(f"{where}.blob: {quoted(blob)} is not UTF-8 text, so it can be no template") from error
    del values["blob"]
    place = f"blob {blob}"
    values["content"] = _filled(template.parse(text, place), place, context.known).encode()


def _directory(fields: Fields, name: str, context: Context) -> Spec:
    return Directory(
        path=grammar.absolute_path(name, fields.path("name")),
        mode=grammar.mode(fields, "0755"),
        owner=grammar.owner(fields),
        data=fields.flag("data", False),
    )


def _file(fields: Fields, name: str, context: Context) -> Spec:
    mode, owner, is_template = (
        grammar.mode(fields, "0644"),
        grammar.owner(fields),
        fields.flag("template", False),
    )
    if ("content" in fields) == ("blob" in fields):
        fields.finish()  # a misspelt one is the better thing to say
        raise Refused(f"{fields.where}: a file has exactly one of content and blob")
    content: Inline | FromBlob
    if "content" in fields:
        text = fields.text("content")
        content = Inline(
            grammar.late(text, fields.path("content")) if is_template else Template((text,) if text else ())
        )
    else:
        content = _blob(fields, context)
    return File(grammar.absolute_path(name, fields.path("name")), mode, owner, content)


def _blob(fields: Fields, context: Context) -> FromBlob:
    return _carried(fields, "blob", grammar.plain(fields, "blob"), fields.text("sha256", ""), context)


def _carried(fields: Fields, field: str, name: str, declared: str, context: Context) -> FromBlob:
    facts = context.blobs.facts(name)
    if facts is None:
        raise fields.wrong(field, f"there is no blob {quoted(name)} beside this list")
    if declared and facts.sha256 and facts.sha256 != declared:
        raise fields.wrong("sha256", f"the blob {quoted(name)} has another digest, {facts.sha256}")
    return FromBlob(name, facts.sha256 or declared, facts.size)


def _secret(fields: Fields, name: str, context: Context) -> Spec:
    owner = grammar.owner(fields)
    path = secret_folder(context.state, owner) / grammar.label(fields, name)
    if "sealed" not in fields:
        return Secret(path, owner, Random(fields.integer("bytes", 32, least=16, most=1024)))
    if "bytes" in fields:
        raise fields.wrong("bytes", "is for a secret that is made on the machine; this one is sealed by the mesh")
    return Secret(sent_beside(path), owner, Sealed(_box(fields)))


def _box(fields: Fields) -> bytes:
    box = fields.base64("sealed")
    if not SEAL_BYTES < len(box) <= SEAL_BYTES + LARGEST_SECRET:
        raise fields.wrong(
            "sealed", f"has {len(box)} bytes; a sealed value has {SEAL_BYTES + 1} to {SEAL_BYTES + LARGEST_SECRET}"
        )
    return box


def _certificate(fields: Fields, name: str, context: Context) -> Spec:
    owner = grammar.owner(fields)
    folder = secret_folder(context.state, owner)
    grammar.label(fields, name)
    hosts = tuple(
        grammar.host(grammar.finished(host, fields.path("hosts")), fields.path("hosts"))
        for host in fields.texts("hosts", ("localhost", "127.0.0.1"))
    )
    if not hosts:
        raise fields.wrong("hosts", "is empty; a certificate is for at least one host")
    return Certificate(
        certificate=folder / f"{name}.crt",
        key=folder / f"{name}.key",
        owner=owner,
        hosts=hosts,
        days=fields.integer("days", 3650, least=1, most=36500),
    )


def _package(fields: Fields, name: str, context: Context) -> Spec:
    where = fields.path("masks")
    masks = tuple(grammar.unit(grammar.finished(mask, where), where) for mask in fields.texts("masks", ()))
    return Package(grammar.package(fields, name), masks, _package_files(fields, context))


def _package_files(fields: Fields, context: Context) -> tuple[FromBlob, ...]:
    if "files" not in fields:
        return ()
    where = fields.path("files")
    names = [grammar.finished(name, where) for name in fields.texts("files")]
    digests = fields.text_table("sha256")
    if not names:
        raise fields.wrong("files", "is empty; leave it out where the package comes from the machine's own sources")
    for at, name in enumerate(names):
        if not name.endswith(_PACKAGE_FILES):
            raise fields.wrong("files", f"{quoted(name)} is no package file's name; it ends with .deb, .rpm or .apk")
        if name in names[:at]:
            raise fields.wrong("files", f"{quoted(name)} is there twice")
    return tuple(_carried(fields, "files", name, digests.get(name, ""), context) for name in names)


def _service(fields: Fields, name: str, context: Context) -> Spec:
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


def _image(fields: Fields, name: str, context: Context) -> Spec:
    return Image(
        name=grammar.image(name, fields.path("name")),
        archive=_blob(fields, context) if "blob" in fields else None,
        engine=_engine(fields),
    )


def _container(fields: Fields, name: str, context: Context) -> Spec:
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


def _ready(fields: Fields | None) -> Ready | None:
    if fields is None:
        return None
    given = [name for name in ("tcp", "command", "file", "login") if name in fields]
    timeout = fields.integer("timeout", 60, least=1, most=3600)
    if len(given) != 1:
        fields.finish()  # as above
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


def _reserved(fields: Fields, name: str, context: Context) -> Spec:
    grammar.label(fields, name)
    ports = grammar.ports(fields)
    if not ports:
        raise fields.wrong("ports", "is missing; a reservation without ports reserves nothing")
    return Reserved(ports)


_PARSERS: Mapping[str, Callable[[Fields, str, Context], Spec]] = {
    "directory": _directory,
    "file": _file,
    "secret": _secret,
    "certificate": _certificate,
    "package": _package,
    "service": _service,
    "image": _image,
    "container": _container,
    "reserved": _reserved,
}


def _digests(spec: Spec) -> dict[str, JsonValue]:
    """The field by which a resource's source covers the bytes of the blobs that it names."""
    if isinstance(spec, Package):
        return {"sha256": {one.name: one.sha256 for one in spec.files}} if spec.files else {}
    blob = spec.archive if isinstance(spec, Image) else spec.content if isinstance(spec, File) else None
    return {"sha256": blob.sha256} if isinstance(blob, FromBlob) else {}


def _templates(spec: Spec) -> tuple[Template, ...]:
    if isinstance(spec, File):
        return (spec.content.template,) if isinstance(spec.content, Inline) else ()
    if isinstance(spec, Service):
        return (*spec.command, *(value for _, value in spec.environment), *_ready_templates(spec.ready))
    if isinstance(spec, Container):
        words = (*spec.entrypoint, *spec.command)
        return (*words, *(value for _, value in spec.environment), *_ready_templates(spec.ready))
    return ()


def _ready_templates(ready: Ready | None) -> tuple[Template, ...]:
    when = ready.when if ready else None
    if isinstance(when, CommandReady):
        return when.command
    return (when.password, when.fingerprint) if isinstance(when, LoginReady) else ()
