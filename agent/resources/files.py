"""What lies in files, read from the fields of one object: directory, file, secret, certificate, package."""

from __future__ import annotations

from agent.errors import Refused
from agent.fields import Fields, quoted
from agent.resources import grammar
from agent.resources.model import Context, secret_folder, sent_beside
from agent.resources.specs import (
    LARGEST_SECRET,
    SEAL_BYTES,
    Certificate,
    Directory,
    File,
    FromBlob,
    Inline,
    Package,
    Random,
    Sealed,
    Secret,
)
from agent.template import Template

_PACKAGE_FILES = (".deb", ".rpm", ".apk")


def directory(fields: Fields, name: str, context: Context) -> Directory:
    """`directory`: NAME is its path."""
    return Directory(
        path=grammar.absolute_path(name, fields.path("name")),
        mode=grammar.mode(fields, "0755"),
        owner=grammar.owner(fields),
        data=fields.flag("data", False),
    )


def file(fields: Fields, name: str, context: Context) -> File:
    """`file`: NAME is its path; its content is inline or a blob's."""
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
        content = blob(fields, context)
    return File(grammar.absolute_path(name, fields.path("name")), mode, owner, content)


def secret(fields: Fields, name: str, context: Context) -> Secret:
    """`secret`: made on the machine, or sealed by the mesh; its owner decides where it lies."""
    owner = grammar.owner(fields)
    path = secret_folder(context.state, owner) / grammar.label(fields, name)
    if "sealed" not in fields:
        return Secret(path, owner, Random(fields.integer("bytes", 32, least=16, most=1024)))
    if "bytes" in fields:
        raise fields.wrong("bytes", "is for a secret that is made on the machine; this one is sealed by the mesh")
    return Secret(sent_beside(path), owner, Sealed(_box(fields)))


def certificate(fields: Fields, name: str, context: Context) -> Certificate:
    """`certificate`: a pair of files beside the secrets of its owner."""
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


def package(fields: Fields, name: str, context: Context) -> Package:
    """`package`: NAME is the distribution's; with `files`, from what the bundle carries."""
    where = fields.path("masks")
    masks = tuple(grammar.unit(grammar.finished(mask, where), where) for mask in fields.texts("masks", ()))
    return Package(grammar.package(fields, name), masks, _package_files(fields, context))


def blob(fields: Fields, context: Context) -> FromBlob:
    """`blob`, and `sha256` where the list says it: a file that the bundle carries."""
    return _carried(fields, "blob", grammar.plain(fields, "blob"), fields.text("sha256", ""), context)


def _box(fields: Fields) -> bytes:
    box = fields.base64("sealed")
    if not SEAL_BYTES < len(box) <= SEAL_BYTES + LARGEST_SECRET:
        raise fields.wrong(
            "sealed", f"has {len(box)} bytes; a sealed value has {SEAL_BYTES + 1} to {SEAL_BYTES + LARGEST_SECRET}"
        )
    return box


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


def _carried(fields: Fields, field: str, name: str, declared: str, context: Context) -> FromBlob:
    facts = context.blobs.facts(name)
    if facts is None:
        raise fields.wrong(field, f"there is no blob {quoted(name)} beside this list")
    if declared and facts.sha256 and facts.sha256 != declared:
        raise fields.wrong("sha256", f"the blob {quoted(name)} has another digest, {facts.sha256}")
    return FromBlob(name, facts.sha256 or declared, facts.size)
