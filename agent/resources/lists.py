"""A list of resources, as a bundle, a module and a declaration hold it: `[params]` and `[[resource]]`.

List order is apply order: what is needed stands earlier. A reference to a secret or a certificate is a need, and
so is the image of a container, where its list declares that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from agent.errors import Refused
from agent.fields import Fields, JsonValue, nearest, quoted
from agent.resources.model import LATE_KINDS, Context, Resource
from agent.resources.parse import fill_item, late_references, parse_resource
from agent.resources.specs import Container


def parse_list(
    items: Sequence[object],
    context: Context,
    *,
    beside: Collection[str] = (),
    after: Sequence[Resource] = (),
    where: str = "resource",
) -> tuple[Resource, ...]:
    """Every resource of a list, in its order.

    `beside` holds ids that stand outside the list and may be needed by it (for an assigned list, the
    carried); `after` is what stands before these in the same list, when that is read part by part. Refused
    when one doesn't validate, needs what isn't earlier, or refers to a secret that isn't its list's.
    """
    resources: list[Resource] = []
    earlier = {resource.id: resource for resource in after}
    for at, item in enumerate(items):
        resource = _with_needs(parse_resource(item, f"{where}[{at}]", context), earlier, beside)
        resources.append(resource)
        earlier[resource.id] = resource
    return tuple(resources)


@dataclass(frozen=True, slots=True)
class Document:
    """A list as its author wrote it: parameters with their defaults, and resources not yet filled."""

    params: Mapping[str, str]
    items: tuple[object, ...]


def read_document(fields: Fields) -> Document:
    """Take `params` and `resource` out of a TOML or JSON document; what else it holds is the caller's."""
    params = fields.table("params")
    values = params.values() if params else {}
    return Document(
        params={name: _scalar(value, f"params.{name}") for name, value in values.items()},
        items=fields.each("resource", (), lambda item, _: item),
    )


def document_values(document: Document, settings: Mapping[str, str], node: str) -> dict[str, str]:
    """What the author's names stand for: parameters (defaults, overridden by `settings`) and the node's name.

    Refused when a setting names no parameter.
    """
    for name in settings:
        if name not in document.params:
            raise Refused(f"there is no parameter {quoted(name)} here{nearest(name, document.params)}")
    values = {f"param.{name}": value for name, value in {**document.params, **settings}.items()}
    return {**values, "node.name": node}


def fill_document(
    document: Document, settings: Mapping[str, str], node: str, elsewhere: Mapping[str, str] | None = None
) -> list[dict[str, JsonValue]]:
    """The list with the author's names filled in, for a list that travels on; the machine's own names stay.

    `elsewhere` are more values by their names. Refused when a setting names no parameter, or a reference none.
    """
    values = {**document_values(document, settings, node), **(elsewhere or {})}
    return [
        fill_item(Fields(item, f"resource[{at}]").values(), f"resource[{at}]", values)
        for at, item in enumerate(document.items)
    ]


def _with_needs(resource: Resource, earlier: Mapping[str, Resource], beside: Collection[str]) -> Resource:
    needs = list(dict.fromkeys(resource.needs))
    for need in needs:
        if need not in earlier and need not in beside:
            hint = nearest(need, [*earlier, *beside])
            raise Refused(f"{resource.id} needs {quoted(need)}, which is not declared before it{hint}")
    for reference in sorted(late_references(resource.spec)):
        group, _, name = reference.partition(".")
        need = f"{LATE_KINDS[group]}:{name}"
        if need not in earlier:
            known = [one.name for one in earlier.values() if one.kind == LATE_KINDS[group]]
            hint = nearest(name, known)
            raise Refused(f"{resource.id} uses ${{{reference}}}, but no {need} is declared before it{hint}")
        if need not in needs:
            needs.append(need)
    if isinstance(resource.spec, Container):
        image = f"image:{resource.spec.image}"
        if image in earlier and image not in needs:
            needs.append(image)
    for need in needs:
        if need in earlier and earlier[need].founder_only and not resource.founder_only:
            raise Refused(
                f"{resource.id} is for every node, but {need}, which it needs, is only a founder's; "
                'give both role = "founder"'
            )
    return replace(resource, needs=tuple(needs))


def _scalar(value: JsonValue, where: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int)):
        return str(value)
    raise Refused(f"{where}: a parameter is a string, a whole number, true or false")
