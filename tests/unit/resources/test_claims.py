from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import Refused
from agent.resources import (
    Claims,
    Context,
    FromBlob,
    Package,
    Port,
    Resource,
    check_beside,
    check_state_folder,
    check_within,
    claims,
    collisions,
    conflict,
    parse_list,
    parse_resource,
)

STATE = Path("/var/lib/x")
CONTEXT = Context(STATE)


def one(kind: str, name: str, **fields: object) -> Resource:
    if kind == "file":
        fields.setdefault("content", "")
    if kind == "service":
        fields.setdefault("command", ["/bin/x"])
    if kind == "container":
        fields.setdefault("image", "app:1")
    return parse_resource({"kind": kind, "name": name, **fields}, "resource[0]", CONTEXT)


PATHS = st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=3).map(lambda names: "/" + "/".join(names))
RESOURCES = st.one_of(
    PATHS.map(lambda path: one("file", path)),
    PATHS.map(lambda path: one("directory", path)),
    st.builds(
        lambda name, port: one("service", name, ports=[port]),
        st.sampled_from(["a", "b"]),
        st.sampled_from(["80", "127.0.0.1:80", "127.0.0.2:80", "80/udp", "[::1]:80", "81"]),
    ),
    st.builds(
        lambda name, port: one("container", name, ports=[port]),
        st.sampled_from(["a", "b"]),
        st.sampled_from(["80:1", "127.0.0.1:80:1", "127.0.0.2:80:1", "80:1/udp", "[::1]:80:1", "81:1"]),
    ),
    st.sampled_from(["a", "b"]).map(lambda name: one("secret", name)),
    st.sampled_from(["a", "b"]).map(lambda name: one("certificate", name)),
    st.just(one("package", "nginx", masks=["nginx.service"])),
)


def test_what_each_kind_claims() -> None:
    assert claims(one("directory", "/a")) == Claims(folders=(Path("/a"),))
    assert claims(one("file", "/a")) == Claims(leaves=(Path("/a"),))
    assert claims(one("secret", "a", owner="web:www")) == Claims(leaves=(STATE / "secrets/web/a",))
    assert claims(one("certificate", "a")) == Claims(
        leaves=(STATE / "secrets/root/a.crt", STATE / "secrets/root/a.key")
    )
    assert claims(one("package", "a1", masks=["a.service"])) == Claims(leaves=(Path("/etc/systemd/system/a.service"),))
    assert claims(one("container", "a", ports=["8080:80"])) == Claims(ports=(Port("tcp", "0.0.0.0", 8080),))
    assert claims(one("container", "a", network="host", ports=["80"])) == Claims(ports=(Port("tcp", "*", 80),))
    assert claims(one("image", "a:1")) == Claims()
    assert claims(one("service", "a", ports=["80"])) == Claims(
        ports=(Port("tcp", "*", 80),), leaves=(Path("/etc/systemd/system/a.service"),)
    )
    assert claims(one("reserved", "a", ports=["22"])) == Claims(ports=(Port("tcp", "*", 22),))
    assert claims(one("service", "a", watches=["/etc/a"], directory="/srv")).ports == ()


@given(RESOURCES, RESOURCES)
def test_a_conflict_goes_both_ways(first: Resource, second: Resource) -> None:
    assert (conflict(first, second) is None) == (conflict(second, first) is None)
    assert conflict(first, first) == f"{first.id} is declared twice"


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        (one("file", "/a"), one("file", "/a", mode="0600"), "file:/a is declared twice"),
        (one("secret", "a"), one("secret", "a", owner="web"), "secret:a is declared twice"),
        (one("file", "/a"), one("directory", "/a"), "file:/a wants the path /a, which directory:/a holds"),
        (
            one("file", "/a"),
            one("file", "/a/b"),
            "file:/a/b wants /a/b, which lies below what file:/a makes no directory",
        ),
        (one("file", "/a"), one("directory", "/a/b/c"), "directory:/a/b/c wants /a/b/c, which lies below"),
        (
            one("package", "p1", masks=["x.service"]),
            one("file", "/etc/systemd/system/x.service"),
            "package:p1 wants the path /etc/systemd/system/x.service",
        ),
        (
            one("package", "p1", masks=["x.service"]),
            one("package", "p2", masks=["x.service"]),
            "package:p1 wants the path /etc/systemd/system/x.service",
        ),
        (
            one("service", "a", ports=["127.0.0.1:80"]),
            one("reserved", "web", ports=["80"]),
            "service:a wants port 127.0.0.1:80/tcp, which reserved:web holds as *:80/tcp",
        ),
        (one("service", "a", ports=["[::]:80"]), one("service", "b", ports=["0.0.0.0:80"]), "service:a wants port"),
        (one("file", str(STATE / "secrets/root/a")), one("secret", "a"), "wants the path"),
        (one("file", str(STATE / "secrets/root/a.key")), one("certificate", "a"), "wants the path"),
        (one("file", str(STATE / "secrets")), one("secret", "a"), "which lies below"),
    ],
)
def test_what_two_cannot_both_have(first: Resource, second: Resource, why: str) -> None:
    assert why in (conflict(first, second) or "")
    assert conflict(second, first)
    with pytest.raises(Refused, match=r"only one of them can be declared$"):
        check_within([first, one("directory", "/elsewhere"), second])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (one("directory", "/a"), one("file", "/a/b")),
        (one("directory", "/a"), one("directory", "/a/b")),
        (one("file", "/a"), one("file", "/ab")),
        (one("file", "/a"), one("file", "/A")),
        (one("secret", "a"), one("certificate", "a")),
        (one("service", "a"), one("secret", "a")),
        (one("service", "a", ports=["80"]), one("service", "b", ports=["80/udp"])),
        (one("service", "a", ports=["127.0.0.1:80"]), one("service", "b", ports=["127.0.0.2:80", "[::1]:80"])),
        (one("package", "p1"), one("package", "p2")),
    ],
)
def test_what_two_can_both_have(first: Resource, second: Resource) -> None:
    assert conflict(first, second) is None
    check_within([first, second])


@given(st.lists(RESOURCES, max_size=6))
def test_a_list_is_refused_exactly_when_two_of_it_are_in_conflict(resources: list[Resource]) -> None:
    pairs = itertools.combinations(resources, 2)
    if any(conflict(first, second) for first, second in pairs):
        with pytest.raises(Refused, match=r"only one of them can be declared$"):
            check_within(resources)
    else:
        check_within(resources)


@given(st.lists(RESOURCES, max_size=3), st.lists(RESOURCES, max_size=3, unique_by=lambda one: one.id))
def test_two_lists_are_refused_exactly_when_one_of_each_are_in_conflict(
    assigned: list[Resource], carried: list[Resource]
) -> None:
    pairs = itertools.product(assigned, carried)
    shared = {"package", "directory"}
    if any(conflict(*pair) for pair in pairs if pair[0] != pair[1] or pair[0].kind not in shared):
        with pytest.raises(Refused):
            check_beside(assigned, carried)
    else:
        check_beside(assigned, carried)


def test_two_origins_can_share_a_package_and_a_directory() -> None:
    both = [one("package", "nginx", masks=["nginx.service"]), one("directory", "/srv", owner="web")]
    check_beside([*both, one("file", "/srv/x")], [*both, one("file", "/srv/y")])


def test_where_a_carried_package_comes_from_is_nobody_else_s_concern() -> None:
    package = one("package", "nginx")
    assert isinstance(package.spec, Package)
    files = (FromBlob("nginx_1.0_amd64.deb", "ab" * 32, 3),)
    carried = replace(package, spec=replace(package.spec, files=files), source="{}")
    check_beside([package], [carried])
    with pytest.raises(Refused, match="asks for something else there"):
        check_beside([one("package", "nginx", masks=["nginx.service"])], [carried])


@pytest.mark.parametrize(
    ("assigned", "carried"),
    [
        (one("package", "nginx"), one("package", "nginx", masks=["nginx.service"])),
        (one("directory", "/srv"), one("directory", "/srv", mode="0700")),
        (one("directory", "/srv"), one("directory", "/srv", data=True)),
    ],
)
def test_two_origins_that_ask_for_different_things_do_not_share(assigned: Resource, carried: Resource) -> None:
    with pytest.raises(Refused, match=f"^{assigned.id} is carried as well, and asks for something else there"):
        check_beside([assigned], [carried])


@pytest.mark.parametrize(
    ("assigned", "carried"),
    [
        (one("file", "/a"), one("file", "/a")),
        (one("secret", "a"), one("secret", "a")),
        (one("service", "a"), one("service", "a")),
        (one("directory", "/a"), one("file", "/a")),
        (one("service", "a", ports=["80"]), one("service", "b", ports=["80"])),
        (one("file", "/a/b"), one("file", "/a")),
    ],
)
def test_two_origins_share_nothing_else(assigned: Resource, carried: Resource) -> None:
    with pytest.raises(Refused, match="only one of them can be declared"):
        check_beside([one("package", "nginx"), assigned], [one("package", "nginx"), carried])


def test_a_shared_directory_is_still_asked_about_the_rest() -> None:
    shared = one("directory", "/a/b")
    with pytest.raises(Refused, match="lies below what file:/a makes no directory"):
        check_beside([shared], [one("file", "/a"), shared])


@pytest.mark.parametrize("kind", ["file", "directory"])
@pytest.mark.parametrize("path", [STATE, STATE / "ledger.db", STATE / "secrets/root/x", STATE / "control/store.db"])
def test_the_state_folder_is_nobodys(kind: str, path: Path) -> None:
    with pytest.raises(Refused, match="lies in the agent's own folder /var/lib/x, where nobody else may put anything"):
        check_state_folder([one(kind, str(path))], STATE)


def test_but_for_what_is_allowed() -> None:
    control = one("file", str(STATE / "control/control.toml"))
    check_state_folder([control], STATE, allowed=[STATE / "control/control.toml"])
    with pytest.raises(Refused):
        check_state_folder([control], STATE)


def test_beside_the_state_folder_all_is_well() -> None:
    check_state_folder(
        [
            one("file", "/var/lib/xy"),
            one("file", "/var/lib/y/x"),
            one("directory", "/var/lib"),
            one("directory", "/var", owner="root:staff"),
            one("secret", "a"),
            one("certificate", "a"),
            one("service", "a", directory=str(STATE)),
        ],
        STATE,
    )


@pytest.mark.parametrize(
    "above",
    [
        one("directory", "/var/lib", data=True),
        one("directory", "/var/lib", owner="web"),
        one("directory", "/var/lib", mode="1777"),
        one("directory", "/var", mode="0775"),
        one("file", "/var/lib"),
    ],
)
def test_above_the_state_folder_nothing_that_gives_it_away(above: Resource) -> None:
    with pytest.raises(Refused, match="lies above the agent's own folder /var/lib/x"):
        check_state_folder([above], STATE)


def test_a_list_that_names_one_thing_twice_is_read_and_then_refused() -> None:
    item = {"kind": "directory", "name": "/a"}
    with pytest.raises(Refused, match="directory:/a is declared twice"):
        check_within(parse_list([item, item], CONTEXT))


@given(
    carried=st.lists(RESOURCES, max_size=3, unique_by=lambda one: one.id),
    assigned=st.lists(RESOURCES, max_size=3, unique_by=lambda one: one.id),
)
def test_collisions_are_what_is_refused_the_other_way_round(carried: list[Resource], assigned: list[Resource]) -> None:
    found = collisions(carried, assigned)
    for resource in carried:
        try:
            check_beside(assigned, [resource])
        except Refused:
            refused = True
        else:
            refused = False
        assert (resource.id in found) == refused


def test_a_collision_names_both() -> None:
    web, other = one("service", "web", ports=["80"]), one("reserved", "other", ports=["127.0.0.1:80"])
    assert collisions([web, one("reserved", "x", ports=["81"])], [other]) == {
        "service:web": "service:web wants port *:80/tcp, which reserved:other holds as 127.0.0.1:80/tcp"
    }
    nginx = one("package", "nginx", masks=["nginx.service"])
    assert collisions([nginx], [nginx]) == {}
    assert collisions([nginx], [one("package", "nginx")]) == {
        "package:nginx": "package:nginx is declared here as well, and asks for something else there"
    }
