"""From one object of a list to one resource: templates filled, fields typed, nothing unknown left."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agent import template
from agent.errors import Refused
from agent.fields import Fields, JsonValue, canonical, field_path, nearest, quoted
from agent.resources import files, grammar, programs
from agent.resources.model import Context, Resource
from agent.resources.specs import (
    CommandReady,
    Container,
    File,
    FromBlob,
    Image,
    Inline,
    LoginReady,
    Package,
    Ready,
    Service,
    Spec,
)
from agent.template import Template

_PARSERS: Mapping[str, Callable[[Fields, str, Context], Spec]] = {
    "directory": files.directory,
    "file": files.file,
    "secret": files.secret,
    "certificate": files.certificate,
    "package": files.package,
    "service": programs.service,
    "image": programs.image,
    "container": programs.container,
    "reserved": programs.reserved,
}


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
