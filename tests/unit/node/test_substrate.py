from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agent.bundle import Blob, archive_of, open_bundle
from agent.errors import Refused
from agent.node import substrate
from agent.node.substrate import Substrate
from agent.resources import File, FromBlob, Image, Inline

BUNDLES = Path(__file__).resolve().parents[3] / "agent" / "bundles"
STATE = Path("/var/lib/a state")
LIST = """
name = "small"

[params]
port = 5671
greeting = "hello"

[mesh]
token_file = "${state}/control/founder.token"

[[resource]]
kind = "secret"
name = "key"
role = "founder"

[[resource]]
kind = "reserved"
name = "broker"
ports = ["127.0.0.1:${param.port}"]

[[resource]]
kind = "file"
name = "/etc/greeting"
content = "${param.greeting}, ${node.name} at ${state}"
template = true
needs = ["reserved:broker"]

[[resource]]
kind = "file"
name = "/opt/big"
blob = "big"

[[resource]]
kind = "file"
name = "${state}/control/control.toml"
content = "x"
role = "founder"
"""


def load(ground: Path, text: str = LIST, *, state: Path = STATE, founder: bool = True, **settings: str) -> Substrate:
    (ground / "blobs").mkdir(exist_ok=True)
    (ground / "blobs" / "big").write_bytes(b"b" * 3_000_000)
    (ground / "bundle.toml").write_text(text, "utf-8")
    return substrate.load(open_bundle(ground), state, "a", settings, founder=founder)


def test_a_bundle_is_read_for_this_node(ground: Path) -> None:
    loaded = load(ground, greeting="good ${morning}")
    assert [one.id for one in loaded.resources] == [
        "secret:key",
        "reserved:broker",
        "file:/etc/greeting",
        "file:/opt/big",
        "file:/var/lib/a state/control/control.toml",
    ]
    assert loaded.mesh is not None
    assert loaded.mesh.token_file == STATE / "control" / "founder.token"
    greeting, big = (one.spec for one in loaded.resources[2:4])
    assert isinstance(greeting, File)
    assert isinstance(greeting.content, Inline)
    assert greeting.content.template.text("") == "good ${morning}, a at /var/lib/a state"
    assert isinstance(big, File)
    assert isinstance(big.content, FromBlob)
    assert big.content.size == 3_000_000
    assert b"".join(loaded.read_blob("big")) == b"b" * 3_000_000


def test_only_a_founder_raises_what_is_a_founders(ground: Path) -> None:
    loaded = load(ground, founder=False)
    assert [one.id for one in loaded.resources] == ["reserved:broker", "file:/etc/greeting", "file:/opt/big"]


def test_a_bundle_without_a_mesh_has_none(ground: Path) -> None:
    assert load(ground, 'name = "bare"') == replace(load(ground, 'name = "bare"'), resources=(), mesh=None)


def resource(text: str) -> str:
    return f'name = "x"\n[[resource]]\n{text}\n'


FILE = 'kind = "file"\ncontent = ""\n'


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('name = "x"\nresources = []', '^resources: there is no such field here; did you mean "resource"'),
        ('name = "x"\n[parms]', '^parms: there is no such field here; did you mean "params"'),
        ('name = "x"\n[params]\na = [1]', "^params.a: a parameter is"),
        ('name = "x"\n[mesh]', "^mesh.token_file: is missing"),
        ('name = "x"\n[mesh]\ntoken_file = "${state}/t"\nport = 1', "^mesh.port: there is no such field"),
        ('name = "x"\n[mesh]\ntoken_file = "/etc/token"', '^mesh.token_file: "/etc/token" does not lie in the state'),
        ('name = "x"\n[mesh]\ntoken_file = "${state}/../token"', "^mesh.token_file: .* is no absolute, normal path"),
        ('name = "x"\n[mesh]\ntoken_file = "${stat}/token"', r"^mesh.token_file: \$\{stat\} has no value here"),
        ('name = "x"\nmesh = 1', "^mesh is a number, not an object"),
        (resource(FILE), r"^resource\[0\].name: is missing"),
        (resource(FILE + 'name = "/etc/x"\nmod = "0644"'), r'resource\[0\].mod: .*did you mean "mode"'),
        (resource(FILE + 'name = "${state}/x"'), "lies in the agent's own folder"),
        (resource(FILE + 'name = "${state}"'), "lies in the agent's own folder"),
        (resource('kind = "directory"\nname = "${state}/control"'), "lies in the agent's own folder"),
        (resource(FILE + 'name = "${state}/control/store.db"'), "lies in the agent's own folder"),
        (resource('kind = "directory"\nname = "/var/lib"\nowner = "daemon"'), "lies above the agent's own folder"),
        (resource(FILE + 'name = "/etc/${param.nam}"'), r"nothing here is called \$\{param.nam\}"),
        (resource(FILE + 'name = "/etc/x"\nneeds = ["package:x"]'), 'needs "package:x", which is not declared before'),
        (resource('kind = "file"\nname = "/etc/x"\nblob = "bi"'), 'no blob "bi"'),
        (resource('kind = "reserved"\nname = "x"\nports = ["0"]'), "0 is no port number"),
        (
            resource(FILE + 'name = "/etc/x"\n[[resource]]\n' + FILE + 'name = "/etc/x"'),
            "file:/etc/x is declared twice",
        ),
        (
            resource(FILE + 'name = "/etc/x"\n[[resource]]\nkind = "directory"\nname = "/etc/x"'),
            "directory:/etc/x wants the path /etc/x, which file:/etc/x holds",
        ),
    ],
)
def test_what_is_not_as_it_must_be_is_refused(ground: Path, text: str, why: str) -> None:
    for founder in (True, False):
        with pytest.raises(Refused, match=why):
            load(ground, text, founder=founder)


def test_a_setting_that_is_no_parameter_is_refused(ground: Path) -> None:
    with pytest.raises(Refused, match='no parameter "prot" here; did you mean "port"'):
        load(ground, prot="1")


def test_a_blob_that_the_disk_has_no_room_for_is_told_before_anything_is_done(ground: Path) -> None:
    loaded = load(ground)
    for state in (ground, ground / "not" / "yet"):
        substrate.check_room(loaded, state)
    bundle = replace(loaded.bundle, blobs={"big": Blob("big", 2**60, "ab" * 32)})
    huge = substrate.load(bundle, STATE, "a", {}, founder=True)
    with pytest.raises(
        Refused, match=rf"{ground} has \d+ MiB free and this bundle needs 2199023255616 MiB there; make room"
    ):
        substrate.check_room(huge, ground / "not" / "yet")


def test_a_name_that_is_no_label_is_refused() -> None:
    assert substrate.node_name("a-1") == "a-1"
    for name in ("", "A", "a.b", "-a", "a" * 64, "a\n"):
        with pytest.raises(Refused, match=r"the node name .* is no DNS label"):
            substrate.node_name(name)


def test_a_bundle_seals_nothing(ground: Path) -> None:
    sealed = f'\n[[resource]]\nkind = "secret"\nname = "db"\nsealed = "{"A" * 68}"\n'
    with pytest.raises(Refused, match="secret:db is sealed, which only the mesh does"):
        load(ground, LIST + sealed)


IMAGES = """
name = "x"
[params]
image = "example/app:1"
[[resource]]
kind = "image"
name = "${param.image}"
[[resource]]
kind = "image"
name = "example/other:1"
blob = "other.tar"
[[resource]]
kind = "image"
name = "example/third:1"
"""


def test_an_image_that_names_no_blob_is_the_one_that_was_packed_under_its_name(ground: Path) -> None:
    (ground / "blobs").mkdir()
    (ground / "blobs" / "other.tar").touch()
    for name in ("example/app:1", "example/other:1"):
        (ground / "blobs" / archive_of(name)).write_text(name)
    archives = [one.spec.archive for one in load(ground, IMAGES).resources if isinstance(one.spec, Image)]
    assert [archive and archive.name for archive in archives] == [archive_of("example/app:1"), "other.tar", None]
    archives = [one.spec.archive for one in load(ground, IMAGES, image="a:2").resources if isinstance(one.spec, Image)]
    assert archives[0] is None
    # What is recorded of it says all that it is, without the file.
    resource = load(ground, IMAGES).resources[0]
    assert f'"blob":"{archive_of("example/app:1")}"' in resource.source
    assert '"sha256":"' in resource.source


@pytest.mark.parametrize("name", ["native", "containers", "empty"])
def test_every_bundle_of_ours_reads_well_and_a_joiner_raises_nothing_of_it(name: str) -> None:
    bundle = open_bundle(BUNDLES / name)
    assert bundle.name == name
    assert bool(substrate.load(bundle, STATE, "a", {}, founder=True).mesh) is (name != "empty")
    assert substrate.load(bundle, STATE, "a", {}, founder=False).resources == ()
