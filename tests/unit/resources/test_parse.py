"""Each kind: what it says when little is said, and every bad field in words with its place."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import Refused
from agent.resources import (
    LARGEST_SECRET,
    SEAL_BYTES,
    Bind,
    Bridge,
    Certificate,
    CommandReady,
    Container,
    Context,
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
    Port,
    Published,
    Random,
    Ready,
    Reserved,
    Sealed,
    Secret,
    Service,
    TcpReady,
    Volume,
    late_references,
    parse_resource,
)
from agent.template import Reference, Template

STATE = Path("/state")


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


@dataclass(frozen=True)
class Facts:
    sha256: str
    size: int


@dataclass(frozen=True)
class Folder:
    """Blobs in memory."""

    blobs: Mapping[str, bytes]

    def facts(self, name: str) -> Facts | None:
        return Facts("ab" * 32, len(self.blobs[name])) if name in self.blobs else None

    def read(self, name: str) -> bytes:
        return self.blobs[name]


DEB, RPM = "nginx_1%3a1.0~rc1_amd64.deb", "nginx-1.0-1.x86_64.rpm"
CONTEXT = Context(
    STATE,
    {"node.name": "node-a"},
    Folder(
        {
            DEB: b"deb",
            RPM: b"rpm",
            "tool": b"\x7fELF\xff",
            "web.conf": b"at ${state} for ${secret.web} of ${node.name}$${x}\n",
        }
    ),
)

Item = dict[str, object]
FILE: Item = {"kind": "file", "name": "/etc/x", "content": "x"}
DIRECTORY: Item = {"kind": "directory", "name": "/etc/x"}
SECRET: Item = {"kind": "secret", "name": "x"}
CERTIFICATE: Item = {"kind": "certificate", "name": "x"}
PACKAGE: Item = {"kind": "package", "name": "nginx"}
SERVICE: Item = {"kind": "service", "name": "x", "command": ["/bin/x"]}
IMAGE: Item = {"kind": "image", "name": "mesh/app:1"}
CONTAINER: Item = {"kind": "container", "name": "x", "image": "mesh/app:1"}
RESERVED: Item = {"kind": "reserved", "name": "x", "ports": ["22"]}
LOGIN: Item = {"address": "amqps://127.0.0.1:5671", "account": "a", "password": "p", "fingerprint": "f"}
EVERY = [FILE, DIRECTORY, SECRET, CERTIFICATE, PACKAGE, SERVICE, IMAGE, CONTAINER, RESERVED]


def read(item: object) -> object:
    return parse_resource(item, "resource[0]", CONTEXT).spec


def text(value: str) -> Template:
    return Template((value,))


def test_defaults_of_a_directory() -> None:
    assert read(DIRECTORY) == Directory(Path("/etc/x"), 0o755, "root", data=False)


def test_defaults_of_a_file() -> None:
    assert read(FILE) == File(Path("/etc/x"), 0o644, "root", Inline(text("x")))


def test_defaults_of_a_secret() -> None:
    assert read(SECRET) == Secret(Path("/state/secrets/root/x"), "root", Random(32))


def test_a_sealed_secret_has_a_file_of_its_own() -> None:
    assert read({**SECRET, "sealed": _base64(bytes(49))}) == Secret(
        Path("/state/secrets/root/x.mesh"), "root", Sealed(bytes(49))
    )
    read({**SECRET, "sealed": _base64(bytes(SEAL_BYTES + LARGEST_SECRET))})


def test_what_is_sealed_is_not_shown() -> None:
    resource = parse_resource({**SECRET, "sealed": _base64(b"box" * 30)}, "resource[0]", Context(STATE))
    assert _base64(b"box" * 30) not in repr(resource)
    assert "boxbox" not in repr(resource)


def test_defaults_of_a_certificate() -> None:
    assert read(CERTIFICATE) == Certificate(
        Path("/state/secrets/root/x.crt"),
        Path("/state/secrets/root/x.key"),
        "root",
        ("localhost", "127.0.0.1"),
        3650,
    )


def test_defaults_of_a_package() -> None:
    assert read(PACKAGE) == Package("nginx", ())


def test_defaults_of_a_service() -> None:
    assert read(SERVICE) == Service(
        name="x",
        command=(text("/bin/x"),),
        user="root",
        environment=(),
        directory=Path("/"),
        ports=(),
        ready=None,
        watches=(),
        stop_signal="SIGTERM",
        stop_timeout=30,
    )


def test_a_reservation() -> None:
    assert read(RESERVED) == Reserved((Port("tcp", "*", 22),))


def test_everything_a_service_can_say() -> None:
    item = {
        **SERVICE,
        "command": ["${agent}", "--state", "${state}", "$${x}", ""],
        "user": "rabbitmq",
        "environment": {"B": "${secret.web}", "A": "${node.name}", "_": ""},
        "directory": "/var/lib/x",
        "ports": ["127.0.0.1:80", "53/udp", 5671],
        "ready": {"tcp": "127.0.0.1:80", "timeout": 5},
        "watches": ["/etc/x", "${state}/y"],
        "stop_signal": "SIGINT",
        "stop_timeout": 5,
    }
    assert read(item) == Service(
        name="x",
        command=(text("/state/agent"), text("--state"), text("/state"), text("${x}"), Template(())),
        user="rabbitmq",
        environment=(("A", text("node-a")), ("B", Template((Reference("secret.web"),))), ("_", Template(()))),
        directory=Path("/var/lib/x"),
        ports=(Port("tcp", "127.0.0.1", 80), Port("udp", "*", 53), Port("tcp", "*", 5671)),
        ready=Ready(TcpReady(Port("tcp", "127.0.0.1", 80)), 5),
        watches=(Path("/etc/x"), Path("/state/y")),
        stop_signal="SIGINT",
        stop_timeout=5,
    )


@pytest.mark.parametrize(
    ("ready", "when"),
    [
        ({"tcp": "80"}, TcpReady(Port("tcp", "127.0.0.1", 80))),
        ({"tcp": "[::1]:80"}, TcpReady(Port("tcp", "::1", 80))),
        ({"command": ["/bin/true"]}, CommandReady((text("/bin/true"),))),
        ({"file": "/run/x"}, FileReady(Path("/run/x"))),
        (
            {"login": {**LOGIN, "password": "${secret.a}", "fingerprint": "${fingerprint.b}"}},
            LoginReady(
                "amqps://127.0.0.1:5671",
                "a",
                Template((Reference("secret.a"),)),
                Template((Reference("fingerprint.b"),)),
            ),
        ),
    ],
)
def test_ways_to_be_ready(ready: dict[str, object], when: object) -> None:
    service = read({**SERVICE, "ready": ready})
    assert isinstance(service, Service)
    assert service.ready == Ready(when, 60)  # type: ignore[arg-type]


def test_owner_decides_where_a_secret_lies() -> None:
    assert read({**SECRET, "owner": "web:www-data"}) == Secret(Path("/state/secrets/web/x"), "web:www-data", Random(32))


def test_a_blob_is_known_by_its_digest() -> None:
    resource = parse_resource({"kind": "file", "name": "/opt/tool", "blob": "tool"}, "resource[0]", CONTEXT)
    assert resource.spec == File(Path("/opt/tool"), 0o644, "root", FromBlob("tool", "ab" * 32, 5))
    assert json.loads(resource.source)["sha256"] == "ab" * 32


def test_package_files_are_known_by_their_digests() -> None:
    resource = parse_resource({**PACKAGE, "files": [DEB, RPM]}, "resource[0]", CONTEXT)
    files = FromBlob(DEB, "ab" * 32, 3), FromBlob(RPM, "ab" * 32, 3)
    assert resource.spec == Package("nginx", (), files)
    assert json.loads(resource.source)["sha256"] == {DEB: "ab" * 32, RPM: "ab" * 32}
    # As the ledger has it.
    assert parse_resource(json.loads(resource.source), "resource[0]", CONTEXT) == resource


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ([], "resource[0].files: is empty; leave it out"),
        (DEB, "resource[0].files: is a string"),
        (["tool"], 'resource[0].files: "tool" is no package file\'s name; it ends with .deb, .rpm or .apk'),
        (["none.apk"], 'resource[0].files: there is no blob "none.apk" beside this list'),
        ([DEB, RPM, DEB], f'resource[0].files: "{DEB}" is there twice'),
    ],
)
def test_bad_package_files_are_named_in_words(files: object, why: str) -> None:
    with pytest.raises(Refused) as refusal:
        read({**PACKAGE, "files": files})
    assert why in str(refusal.value)


def test_another_digest_of_a_package_file_is_refused() -> None:
    with pytest.raises(Refused, match=f'the blob "{DEB}" has another digest'):
        read({**PACKAGE, "files": [DEB], "sha256": {DEB: "cd" * 32}})


def test_a_list_that_travels_alone_has_no_package_files() -> None:
    with pytest.raises(Refused, match=f'files: there is no blob "{RPM}" beside this list'):
        parse_resource({**PACKAGE, "files": [RPM]}, "resource[0]", Context(STATE))


def test_a_blob_that_is_a_template_becomes_content() -> None:
    resource = parse_resource(
        {"kind": "file", "name": "/etc/x", "blob": "web.conf", "template": True}, "resource[0]", CONTEXT
    )
    assert resource.spec == File(
        Path("/etc/x"),
        0o644,
        "root",
        Inline(Template(("at /state for ", Reference("secret.web"), " of node-a${x}\n"))),
    )
    assert "blob" not in json.loads(resource.source)


def test_content_is_verbatim_unless_it_is_a_template() -> None:
    content = "${state} $${x} ${ ${HOME:-x} $"
    assert read({**FILE, "content": content}) == read({**FILE, "content": content, "template": False})
    file = read({**FILE, "content": content})
    assert isinstance(file, File)
    assert file.content == Inline(text(content))


def test_empty_content_is_a_file_without_bytes() -> None:
    assert read({**FILE, "content": ""}) == File(Path("/etc/x"), 0o644, "root", Inline(Template(())))


def test_null_is_as_good_as_absent() -> None:
    assert read({**FILE, "blob": None, "mode": None, "template": None}) == read(FILE)


@pytest.mark.parametrize("item", EVERY, ids=lambda item: str(item["kind"]))
def test_the_ledger_reads_its_own_copy_as_the_same(item: dict[str, object]) -> None:
    resource = parse_resource({**item, "needs": ["package:a"], "role": "founder"}, "resource[0]", CONTEXT)
    again = parse_resource(json.loads(resource.source), "resource[0]", CONTEXT)
    assert (again.id, again.spec, again.digest) == (resource.id, resource.spec, resource.digest)
    assert resource.id == f"{item['kind']}:{item['name']}"
    assert (resource.needs, resource.founder_only) == (("package:a",), True)


@given(st.text(st.sampled_from("${}a.") | st.characters(exclude_categories=["Cs"])), st.booleans())
def test_the_ledgers_copy_keeps_any_content(content: str, is_template: bool) -> None:
    item = {**FILE, "content": content, "template": is_template}
    try:
        resource = parse_resource(item, "resource[0]", CONTEXT)
    except Refused:
        assert is_template
        return
    assert parse_resource(json.loads(resource.source), "resource[0]", CONTEXT) == resource


def test_needs_and_role_are_no_part_of_what_a_thing_is() -> None:
    plain = parse_resource(FILE, "resource[0]", CONTEXT)
    assert parse_resource({**FILE, "needs": ["a:b"], "role": "founder"}, "resource[0]", CONTEXT).digest == plain.digest
    assert parse_resource({**FILE, "mode": "0600"}, "resource[0]", CONTEXT).digest != plain.digest


def test_what_is_filled_late() -> None:
    service = {
        **SERVICE,
        "command": ["/bin/x", "${fingerprint.a}"],
        "environment": {"X": "${secret.b}"},
        "ready": {"login": {**LOGIN, "password": "${secret.c}", "fingerprint": "${fingerprint.d}"}},
    }
    found = late_references(parse_resource(service, "resource[0]", CONTEXT).spec)
    assert found == {"fingerprint.a", "secret.b", "secret.c", "fingerprint.d"}
    ready = {**SERVICE, "ready": {"command": ["/bin/x", "${fingerprint.e}"]}}
    assert late_references(parse_resource(ready, "resource[0]", CONTEXT).spec) == {"fingerprint.e"}
    file = {**FILE, "content": "${secret.f}", "template": True}
    assert late_references(parse_resource(file, "resource[0]", CONTEXT).spec) == {"secret.f"}
    for item in EVERY:
        assert late_references(parse_resource(item, "resource[0]", CONTEXT).spec) == frozenset()


LONG = "a" * 256

BAD: list[tuple[dict[str, object], str]] = [
    # What every resource has.
    ({"name": "/x"}, "resource[0].kind: is missing; it must be a string"),
    ({"kind": "file"}, "resource[0].name: is missing; it must be a string"),
    ({"kind": "fiel", "name": "/x"}, 'resource[0].kind: there is no kind "fiel"; did you mean "file"?'),
    ({"kind": "", "name": "/x"}, 'resource[0].kind: there is no kind ""'),
    ({"kind": 1, "name": "/x"}, "resource[0].kind: is a number; it must be a string"),
    ({"kind": "${node.name}", "name": "/x"}, 'resource[0].kind: there is no kind "${node.name}"'),
    ({**FILE, "Mode": "0644"}, 'resource[0].Mode: there is no such field here; did you mean "mode"?'),
    ({**FILE, "a\x1b[31m": 1}, 'resource[0]."a\\u001b[31m": there is no such field here'),
    ({**FILE, "needs": "package:a"}, "resource[0].needs: is a string; it must be a list"),
    ({**FILE, "needs": [1]}, "resource[0].needs[0]: is a number; it must be a string"),
    ({**FILE, "needs": ["secret:${secret.x}"]}, "resource[0].needs: ${secret.x} has no value here"),
    ({**FILE, "role": "joiner"}, 'resource[0].role: "joiner" is no role; the only one is founder'),
    ({**FILE, "role": ["founder"]}, "resource[0].role: is a list; it must be a string"),
    ({**FILE, "mode": "${param.x}"}, "resource[0].mode: nothing here is called ${param.x}"),
    # Paths.
    *(
        ({**kind, "name": name}, why)
        for kind in (FILE, DIRECTORY)
        for name, why in [
            ("", 'resource[0].name: "" is no absolute, normal path'),
            ("etc/x", 'resource[0].name: "etc/x" is no absolute, normal path'),
            ("/", 'resource[0].name: "/" is no absolute, normal path'),
            ("//", 'resource[0].name: "//" is no absolute, normal path'),
            ("//etc/x", 'resource[0].name: "//etc/x" is no absolute, normal path'),
            ("/etc//x", 'resource[0].name: "/etc//x" is no absolute, normal path'),
            ("/etc/x/", 'resource[0].name: "/etc/x/" is no absolute, normal path'),
            ("/etc/./x", 'resource[0].name: "/etc/./x" is no absolute, normal path'),
            ("/etc/../x", 'resource[0].name: "/etc/../x" is no absolute, normal path'),
            ("/..", 'resource[0].name: "/.." is no absolute, normal path'),
            ("~/x", 'resource[0].name: "~/x" is no absolute, normal path'),
            ("/etc/x\0", 'resource[0].name: "/etc/x\\u0000" holds a character that can\'t be seen'),
            ("/etc/x\n", 'resource[0].name: "/etc/x\\n" holds a character that can\'t be seen'),
            ("/etc/\x7f", 'resource[0].name: "/etc/\\x7f" holds a character that can\'t be seen'),
            ("/etc/\u202ex", 'resource[0].name: "/etc/\\u202ex" holds a character that can\'t be seen'),
            ("/etc/x\u200b", 'resource[0].name: "/etc/x\\u200b" holds a character that can\'t be seen'),
            ("/etc/\udcff", 'resource[0].name: "/etc/\\udcff" holds a character that can\'t be seen'),
            (f"/etc/{LONG}", "is too long; a name in a path has 255 bytes at most, a path 4095"),
            ("/etc/" + "ä" * 128, "is too long; a name in a path has 255 bytes at most, a path 4095"),
            ("/x" * 2048, "is too long; a name in a path has 255 bytes at most, a path 4095"),
            ("/etc/${secret.x}", "resource[0].name: ${secret.x} has no value here"),
            ("/etc/${fingerprint.x}", "resource[0].name: ${fingerprint.x} has no value here"),
            ("/etc/${", "is no reference"),
        ]
    ),
    # Modes and owners.
    *(
        ({**kind, "mode": mode}, f'resource[0].mode: "{mode}" is no file mode; write it in octal, as in "0644"')
        for kind in (FILE, DIRECTORY)
        for mode in ("", "64", "0o644", "rw-r--r--", "0844", "-644", "+644", "06 44", "006444", "٠٦٤٤")
    ),
    ({**FILE, "mode": 420}, "resource[0].mode: is a number; it must be a string"),
    *(
        ({**kind, "owner": owner}, "is no owner; write USER or USER:GROUP")
        for kind in (FILE, DIRECTORY, SECRET, CERTIFICATE)
        for owner in ("", ":", "root:", ":root", "a:b:c", "..", "../x", "a/b", "-x", "a b", "a\n", "ä", "a" * 65)
    ),
    # Directories.
    ({**DIRECTORY, "data": "true"}, "resource[0].data: is a string; it must be true or false"),
    ({**DIRECTORY, "content": "x"}, "resource[0].content: there is no such field here"),
    # Files.
    ({"kind": "file", "name": "/x"}, "resource[0]: a file has exactly one of content and blob"),
    ({**FILE, "blob": "tool"}, "resource[0]: a file has exactly one of content and blob"),
    ({**FILE, "blob": "web.conf", "template": True}, "resource[0]: a file has exactly one of content and blob"),
    (
        {"kind": "file", "name": "/x", "contents": "x"},
        'resource[0].contents: there is no such field here; did you mean "content"?',
    ),
    ({**FILE, "content": 1}, "resource[0].content: is a number; it must be a string"),
    ({**FILE, "template": "true"}, "resource[0].template: is a string; it must be true or false"),
    ({**FILE, "template": True, "content": "${"}, 'resource[0].content: "${" is no reference'),
    (
        {**FILE, "template": True, "content": "${stat}"},
        'resource[0].content: nothing here is called ${stat}; did you mean "state"?',
    ),
    ({**FILE, "template": True, "content": "${secret}"}, "resource[0].content: nothing here is called ${secret}"),
    ({**FILE, "template": True, "content": "${secret.a.b}"}, "nothing here is called ${secret.a.b}"),
    ({**FILE, "sha256": "ab" * 32}, "resource[0].sha256: there is no such field here"),
    ({"kind": "file", "name": "/x", "blob": "tol"}, 'resource[0].blob: there is no blob "tol" beside this list'),
    ({"kind": "file", "name": "/x", "blob": "../tool"}, "resource[0].blob: there is no blob"),
    ({"kind": "file", "name": "/x", "blob": ""}, "resource[0].blob: there is no blob"),
    ({"kind": "file", "name": "/x", "blob": "tol", "template": True}, "resource[0].blob: there is no blob"),
    ({"kind": "file", "name": "/x", "blob": ["tool"], "template": True}, "resource[0].blob: is a list"),
    ({"kind": "file", "name": "/x", "blob": "tool", "template": True}, '"tool" is not UTF-8 text'),
    ({"kind": "file", "name": "/x", "blob": "tool", "sha256": "cd" * 32}, "has another digest"),
    # Secrets and certificates.
    *(
        ({**kind, "name": name}, f"resource[0].name: {json.dumps(name)} is no DNS label")
        for kind in (SECRET, CERTIFICATE, SERVICE, RESERVED)
        for name in ("", "X", "a.b", "a/b", "..", "-a", "a_b", "a" * 64, "a\n")
    ),
    ({**SECRET, "bytes": "32"}, "resource[0].bytes: is a string; it must be a whole number"),
    ({**SECRET, "bytes": 32.0}, "resource[0].bytes: is a number; it must be a whole number"),
    ({**SECRET, "bytes": True}, "resource[0].bytes: is true or false; it must be a whole number"),
    ({**SECRET, "bytes": 15}, "resource[0].bytes: must be a whole number from 16 to 1024"),
    ({**SECRET, "bytes": 1025}, "resource[0].bytes: must be a whole number from 16 to 1024"),
    ({**SECRET, "sealed": "AAA"}, "resource[0].sealed"),
    ({**SECRET, "sealed": "AAAA AAAA"}, "resource[0].sealed"),
    ({**SECRET, "sealed": 7}, "resource[0].sealed: is a number; it must be a string"),
    ({**SECRET, "sealed": _base64(bytes(48))}, "resource[0].sealed: has 48 bytes; a sealed value has 49 to 65584"),
    ({**SECRET, "sealed": _base64(bytes(65585))}, "resource[0].sealed: has 65585 bytes"),
    ({**SECRET, "sealed": _base64(bytes(49)), "bytes": 32}, "resource[0].bytes: is for a secret that is made on"),
    ({**SECRET, "value": "x"}, "resource[0].value: there is no such field here"),
    ({**CERTIFICATE, "days": 0}, "resource[0].days: must be a whole number from 1 to 36500"),
    ({**CERTIFICATE, "days": 36501}, "resource[0].days: must be a whole number from 1 to 36500"),
    ({**CERTIFICATE, "hosts": []}, "resource[0].hosts: is empty; a certificate is for at least one host"),
    ({**CERTIFICATE, "hosts": "localhost"}, "resource[0].hosts: is a string; it must be a list"),
    *(
        ({**CERTIFICATE, "hosts": ["localhost", host]}, "resource[0].hosts: ")
        for host in (
            "",
            "a,DNS:b",
            "a\nDNS:b",
            "a\n",
            "DNS:a",
            "email:copy",
            "@section",
            "$ENV::HOME",
            "a b",
            "a/b",
            "a..b",
            ".a",
            "a.",
            "-a",
            "a-",
            "*",
            "a.*",
            "a*.b",
            "256.0.0.1",
            "1.2.3",
            "127",
            "fe80::1%eth0",
            "[::1]",
            "::1]",
            "ä.example",
            "a" * 64,
            ".".join(["a" * 60] * 5),
            "a\0",
        )
    ),
    # Packages.
    *(
        ({**PACKAGE, "name": name}, "is no package's name; write it without version or architecture")
        for name in (
            "",
            "a",
            "-y",
            "--allow-unauthenticated",
            "nginx-",
            "nginx=1.0",
            "nginx/stable",
            "nginx:i386",
            "./nginx.deb",
            "/tmp/x.deb",
            "nginx*",
            "nginx?",
            "^nginx$",
            "task^",
            "~nnginx",
            "?installed",
            "Nginx",
            "nginx apache2",
            "nginx\n",
            "nginx_full",
            "+x",
            ".x",
            "a" * 129,
        )
    ),
    ({**PACKAGE, "version": "1"}, "resource[0].version: there is no such field here"),
    *(
        ({**PACKAGE, "masks": [mask]}, "is no systemd unit's full name, as in x.service")
        for mask in ("", "x", ".service", "../x.service", "a/b.service", "x.service\n", "-x.service", "x.mount")
    ),
    # Services.
    ({"kind": "service", "name": "x"}, "resource[0].command: is missing; it must be a list"),
    ({"kind": "service", "name": "x", "comand": ["x"]}, 'it must be a list; is "comand" it, misspelt?'),
    ({**SERVICE, "command": "/bin/x -v"}, "resource[0].command: is a string; it must be a list"),
    ({**SERVICE, "command": []}, "resource[0].command: is empty; it must hold the program"),
    ({**SERVICE, "command": ["", "x"]}, "resource[0].command: is empty; it must hold the program"),
    ({**SERVICE, "command": ["/bin/x", 1]}, "resource[0].command[1]: is a number; it must be a string"),
    ({**SERVICE, "command": ["/bin/x", "a\0b"]}, 'resource[0].command: "a\\u0000b" holds a zero character'),
    ({**SERVICE, "command": ["/bin/x", "${HOME}"]}, 'resource[0].command[1]: "${HOME}" is no reference'),
    ({**SERVICE, "command": ["/bin/x", "${home}"]}, "resource[0].command: nothing here is called ${home}"),
    (
        {**SERVICE, "command": ["/bin/x", "--password=${secret.a}"]},
        "resource[0].command: every user of the machine could read ${secret.a} there",
    ),
    *(
        ({**SERVICE, "user": user}, "is no user's name; write it without a group")
        for user in ("", "a:b", "-x", "a b", "../x", "a\n", "a" * 65)
    ),
    ({**SERVICE, "environment": []}, "resource[0].environment is a list, not an object with named fields"),
    ({**SERVICE, "environment": {"A": 1}}, "resource[0].environment.A: is a number; it must be a string"),
    ({**SERVICE, "environment": {"A": None}}, "resource[0].environment.A: is missing"),
    ({**SERVICE, "environment": {"A": "x\0B=y"}}, 'resource[0].environment.A: "x\\u0000B=y" holds a zero character'),
    *(
        ({**SERVICE, "environment": {name: "x"}}, f"resource[0].environment: {json.dumps(name)} is no variable's name")
        for name in ("", "A=B", "1A", "A B", "A\n", "A-B")
    ),
    (
        {**SERVICE, "environment": {"AGENT_SERVICE": "x"}},
        'resource[0].environment: "AGENT_SERVICE" is the agent\'s own',
    ),
    ({**SERVICE, "environment": {"AGENT_SERVICE_STAMP": "x"}}, "is the agent's own"),
    ({**SERVICE, "directory": "x"}, 'resource[0].directory: "x" is no absolute, normal path'),
    ({**SERVICE, "directory": "/${secret.x}"}, "resource[0].directory: ${secret.x} has no value here"),
    ({**SERVICE, "watches": ["x"]}, 'resource[0].watches: "x" is no absolute, normal path'),
    ({**SERVICE, "watches": ["/${secret.x}"]}, "resource[0].watches: ${secret.x} has no value here"),
    ({**SERVICE, "stop_signal": "TERM"}, 'resource[0].stop_signal: there is no signal "TERM"; write it as in SIGTERM'),
    ({**SERVICE, "stop_signal": 15}, "resource[0].stop_signal: is a number; it must be a string"),
    ({**SERVICE, "stop_timeout": 0}, "resource[0].stop_timeout: must be a whole number from 1 to 3600"),
    ({**SERVICE, "stop_timeout": "30"}, "resource[0].stop_timeout: is a string; it must be a whole number"),
    ({**SERVICE, "ports": "80"}, "resource[0].ports: is a string; it must be a list"),
    ({**SERVICE, "ports": ["http"]}, 'resource[0].ports[0]: "http" is no port'),
    ({**SERVICE, "ports": ["80", "0"]}, "resource[0].ports[1]: 0 is no port number"),
    ({**SERVICE, "ports": [65536]}, "resource[0].ports[0]: 65536 is no port number"),
    ({**SERVICE, "ports": [-80]}, 'resource[0].ports[0]: "-80" is no port'),
    ({**SERVICE, "ports": [True]}, "resource[0].ports[0]: a port is written as a string"),
    ({**SERVICE, "ports": [80.0]}, "resource[0].ports[0]: a port is written as a string"),
    ({**SERVICE, "ports": ["${secret.x}"]}, "resource[0].ports[0]: ${secret.x} has no value here"),
    *(
        ({**SERVICE, "ports": ["127.0.0.1:80", other]}, "are the same port twice")
        for other in ("127.0.0.1:80", "80", 80, "0.0.0.0:80/tcp", "[::]:80", "[::ffff:127.0.0.1]:80", "*:00080")
    ),
    ({**SERVICE, "ready": "tcp"}, "resource[0].ready is a string, not an object with named fields"),
    ({**SERVICE, "ready": {}}, "resource[0].ready: has exactly one of tcp, command, file and login"),
    ({**SERVICE, "ready": {"tcp": "80", "file": "/x"}}, "resource[0].ready: has exactly one of"),
    ({**SERVICE, "ready": {"tpc": "80"}}, 'resource[0].ready.tpc: there is no such field here; did you mean "tcp"?'),
    ({**SERVICE, "ready": {"tcp": "80", "timout": 1}}, "resource[0].ready.timout: there is no such field here"),
    ({**SERVICE, "ready": {"tcp": "80", "timeout": 0}}, "resource[0].ready.timeout: must be a whole number from 1"),
    ({**SERVICE, "ready": {"tcp": "80/udp"}}, 'resource[0].ready.tcp: "80/udp" is no TCP port'),
    ({**SERVICE, "ready": {"tcp": "x"}}, 'resource[0].ready.tcp: "x" is no port'),
    ({**SERVICE, "ready": {"command": []}}, "resource[0].ready.command: is empty"),
    ({**SERVICE, "ready": {"command": ["x", "${secret.a}"]}}, "resource[0].ready.command: every user of the machine"),
    ({**SERVICE, "ready": {"file": "x"}}, 'resource[0].ready.file: "x" is no absolute, normal path'),
    ({**SERVICE, "ready": {"login": "x"}}, "resource[0].ready.login is a string, not an object"),
    ({**SERVICE, "ready": {"login": {**LOGIN, "address": "x"}}}, 'resource[0].ready.login.address: "x" is no broker'),
    ({**SERVICE, "ready": {"login": {**LOGIN, "account": ""}}}, 'resource[0].ready.login.account: "" is no account'),
    ({**SERVICE, "ready": {"login": {**LOGIN, "vhost": "/"}}}, "resource[0].ready.login.vhost: there is no such"),
    ({**SERVICE, "ready": {"login": {"address": LOGIN["address"]}}}, "resource[0].ready.login.account: is missing"),
    # Reservations.
    ({"kind": "reserved", "name": "x"}, "resource[0].ports: is missing; a reservation without ports"),
    ({**RESERVED, "ports": []}, "resource[0].ports: is missing; a reservation without ports"),
    ({**RESERVED, "ports": ["22", "22"]}, "are the same port twice"),
]


@pytest.mark.parametrize(("item", "why"), BAD, ids=[f"{at}" for at in range(len(BAD))])
def test_a_bad_field_is_named_in_words(item: dict[str, object], why: str) -> None:
    with pytest.raises(Refused) as refusal:
        read(item)
    message = str(refusal.value)
    assert why in message
    assert message.startswith(("resource[0]", "blob "))
    assert message.isprintable()


@pytest.mark.parametrize("item", [None, "file:/etc/x", [], 1])
def test_what_is_no_object_is_refused(item: object) -> None:
    with pytest.raises(Refused, match=r"^resource\[0\] is .*, not an object with named fields"):
        read(item)


@pytest.mark.parametrize("name", ["/etc/ä x", "/etc/...", "/etc/.x", "/" + "a" * 255, "/etc/-x", "/etc/a:b"])
def test_an_odd_path_that_is_one(name: str) -> None:
    resource = parse_resource({**FILE, "name": name}, "resource[0]", CONTEXT)
    assert resource.id == f"file:{name}"
    assert isinstance(resource.spec, File)
    assert resource.spec.path == Path(name)


def test_a_brace_in_a_path_is_written_with_two_dollars() -> None:
    assert parse_resource({**FILE, "name": "/etc/$${x}"}, "resource[0]", CONTEXT).id == "file:/etc/${x}"


@pytest.mark.parametrize(("mode", "bits"), [("644", 0o644), ("0644", 0o644), ("1777", 0o1777), ("04755", 0o4755)])
def test_modes(mode: str, bits: int) -> None:
    directory = read({**DIRECTORY, "mode": mode})
    assert isinstance(directory, Directory)
    assert directory.mode == bits


@pytest.mark.parametrize("name", ["g++", "libc6", "0ad", "python3.11-venv", "memtest86+", "lib.x.", "a" * 128])
def test_packages_by_odd_names(name: str) -> None:
    assert read({**PACKAGE, "name": name}) == Package(name, ())


@pytest.mark.parametrize("mask", ["x.service", "epmd.socket", "x@.service", "getty@tty1.service", "a:b-c_d.timer"])
def test_masks(mask: str) -> None:
    assert read({**PACKAGE, "masks": [mask]}) == Package("nginx", (mask,))


@pytest.mark.parametrize(
    ("host", "meant"),
    [
        ("localhost", "localhost"),
        ("a.b-c.example", "a.b-c.example"),
        ("*.example.org", "*.example.org"),
        ("_dmarc.example.org", "_dmarc.example.org"),
        ("1.example", "1.example"),
        ("10.0.0.1", "10.0.0.1"),
        ("::1", "::1"),
        ("2001:DB8::0:1", "2001:db8::1"),
    ],
)
def test_hosts_of_a_certificate(host: str, meant: str) -> None:
    certificate = read({**CERTIFICATE, "hosts": [host]})
    assert isinstance(certificate, Certificate)
    assert certificate.hosts == (meant,)


@given(st.text(st.sampled_from("abc.,:*-\n=@$%[]0129DNSIP ") | st.characters()))
def test_a_host_never_says_more_than_one(host: str) -> None:
    try:
        certificate = read({**CERTIFICATE, "hosts": [host]})
    except Refused:
        return
    assert isinstance(certificate, Certificate)
    assert not set(certificate.hosts[0]) & set(",\n\r\0@$=%[]/ \\\"'#;")


def container(**fields: object) -> Container:
    found = read({**CONTAINER, **fields})
    assert isinstance(found, Container)
    return found


def test_defaults_of_an_image() -> None:
    assert read(IMAGE) == Image("mesh/app:1", archive=None, engine=None)


def test_an_image_that_is_carried_is_hashed_with_its_archive() -> None:
    item = {**IMAGE, "blob": "tool", "engine": "docker"}
    assert read(item) == Image("mesh/app:1", FromBlob("tool", "ab" * 32, 5), EngineName.DOCKER)
    assert '"sha256":"abab' in parse_resource(item, "resource[0]", CONTEXT).source


def test_defaults_of_a_container() -> None:
    assert container() == Container(
        name="x",
        engine=None,
        image="mesh/app:1",
        entrypoint=(),
        command=(),
        environment=(),
        mounts=(),
        network=Bridge("", ()),
        user="",
        hostname="",
        labels=(),
        limits=Limits(),
        restart="always",
        ready=None,
        watches=(),
        stop_signal="SIGTERM",
        stop_timeout=30,
    )


def test_ports_of_a_container_always_have_an_address_and_both_numbers() -> None:
    found = container(ports=["8080:80", "*:443:8443/tcp", "127.0.0.1:53:5353/udp", "[::1]:80:80"])
    assert found.network == Bridge(
        "",
        (
            Published(Port("tcp", "0.0.0.0", 8080), 80),
            Published(Port("tcp", "0.0.0.0", 443), 8443),
            Published(Port("udp", "127.0.0.1", 53), 5353),
            Published(Port("tcp", "::1", 80), 80),
        ),
    )
    assert container(network="host", ports=["80", "127.0.0.1:53/udp"]).network == HostNetwork(
        (Port("tcp", "*", 80), Port("udp", "127.0.0.1", 53))
    )


def test_mounts_limits_and_labels_of_a_container() -> None:
    found = container(
        mounts=["${state}/control:/control", "/etc/x:/x:ro", "/:/host:ro", "my-data.1:/data"],
        limits={"memory": "512m", "cpus": 1.5, "pids": 100, "nofile": 65536},
        labels={"org.example/team": "${node.name}"},
    )
    assert found.mounts == (
        Bind(STATE / "control", Path("/control"), read_only=False),
        Bind(Path("/etc/x"), Path("/x"), read_only=True),
        Bind(Path("/"), Path("/host"), read_only=True),
        Volume("my-data.1", Path("/data"), read_only=False),
    )
    assert found.limits == Limits(512 << 20, "1.5", 100, 65536)
    assert found.labels == (("org.example/team", "node-a"),)
    assert container(limits={"memory": 6 << 20, "cpus": "0.25"}).limits == Limits(6 << 20, "0.25")
    assert container(limits={"cpus": 2}).limits == Limits(cpus="2")


def test_secrets_of_a_container_are_in_its_environment() -> None:
    found = container(environment={"A": "${secret.a}"}, command=["x", "${fingerprint.c}"], entrypoint=["/e"])
    assert late_references(found) == {"secret.a", "fingerprint.c"}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"image": ""}, "image: .* is no image's name"),
        ({"image": "Upper/Case"}, "image: .* is no image's name"),
        ({"image": "--privileged"}, "image: .* is no image's name"),
        ({"engine": "lxc"}, "engine: there is no engine .*podman or docker"),
        ({"command": []}, "command: is empty"),
        ({"command": ["x", "${secret.a}"]}, "command: every user of the machine could read"),
        ({"entrypoint": ["${secret.a}"]}, "entrypoint: every user of the machine could read"),
        ({"environment": {"A B": ""}}, "environment: .* is no variable's name"),
        ({"environment": {"DOCKER_HOST": "${secret.a}"}}, "environment: .* means something to the engine"),
        ({"environment": {"PATH": "${secret.a}"}}, "environment: .* means something to the engine"),
        ({"labels": {"mesh-agent": "x"}}, "labels: .* is the agent's own"),
        ({"labels": {"a=b": "x"}}, "labels: .* is no label's name"),
        ({"labels": {"a": "${secret.x}"}}, "labels.a: .* has no value here"),
        ({"ports": ["80"]}, r"ports\[0\]: .* is no published port; write \[ADDRESS:\]HOST:CONTAINER"),
        ({"ports": [80]}, r"ports\[0\]: a published port is written as a string"),
        ({"ports": ["80:0"]}, r"ports\[0\]: .* is no published port"),
        ({"ports": ["0:80"]}, r"ports\[0\]: 0 is no port number"),
        ({"ports": ["[::]:80"]}, r"ports\[0\]: .* is no published port"),
        ({"ports": ["80:80/sctp"]}, r"ports\[0\]: .* is no protocol"),
        ({"ports": ["80:80", "127.0.0.1:80:81"]}, "ports: .* are the same port twice"),
        ({"network": "host", "ports": ["80:80"]}, r"ports\[0\]: "),
        ({"network": "bridge"}, "network: .* is the engine's own"),
        ({"network": "container:x"}, "network: .* is no DNS label"),
        ({"mounts": ["/a"]}, "mounts: .* is no mount; write SOURCE:TARGET"),
        ({"mounts": ["/a:/b:rw"]}, "mounts: .* is no mount"),
        ({"mounts": ["a/b:/b"]}, "mounts: .* is neither an absolute path nor a volume's name"),
        ({"mounts": ["ab" * 32 + ":/b"]}, "mounts: .* is neither an absolute path nor a volume's name"),
        ({"mounts": ["/a:b"]}, "mounts: .* is no absolute, normal path"),
        ({"mounts": ["/a:/x", "data:/x"]}, "mounts: two mounts have the target /x"),
        ({"user": "a b"}, "user: .* is no user"),
        ({"hostname": "a_b."}, "hostname: "),
        ({"hostname": "10.0.0.1"}, "hostname: .* is no name that a machine could have"),
        ({"limits": {"memory": "5m"}}, "limits.memory: must be a number of bytes, 6 MiB at least"),
        ({"limits": {"memory": 1}}, "limits.memory: must be a whole number from 6291456"),
        ({"limits": {"memory": True}}, "limits.memory: "),
        ({"limits": {"cpus": "0"}}, "limits.cpus: must be a number above 0"),
        ({"limits": {"cpus": "1e3"}}, "limits.cpus: must be a number above 0"),
        ({"limits": {"cpus": True}}, "limits.cpus: must be a number above 0"),
        ({"limits": {"pids": 0}}, "limits.pids: must be a whole number from 1"),
        ({"limits": {"swap": 1}}, "limits.swap: there is no such field here"),
        ({"restart": "sometimes"}, "restart: .* is none of no, on-failure"),
        ({"stop_signal": "TERM"}, "stop_signal: there is no signal"),
        ({"name": "Web"}, "name: .* is no DNS label"),
        ({"privileged": True}, "privileged: there is no such field here"),
    ],
)
def test_a_wrong_container_is_refused_with_its_place(fields: dict[str, object], why: str) -> None:
    with pytest.raises(Refused, match=rf"^resource\[0\]\.{why}"):
        container(**fields)


@given(st.text(st.sampled_from("abA1:/@-._") | st.characters(), max_size=20))
def test_an_images_name_is_taken_for_nothing_else(name: str) -> None:
    try:
        found = read({**IMAGE, "name": name})
    except Refused:
        return
    assert isinstance(found, Image)
    assert not name.startswith("-")
    assert name.isascii()
    assert name.split() == [name]


VALUES: st.SearchStrategy[object] = st.text(max_size=5) | st.sampled_from(
    [
        None,
        True,
        0,
        80,
        -1,
        1.5,
        float("inf"),
        10**30,
        "",
        "root",
        "/x",
        "80",
        "0644",
        "-",
        "..",
        "${state}",
        "${secret.x}",
        "${",
        "$${",
        [],
        ["80"],
        ["/x"],
        [1],
        [[]],
        {},
        {"A": "b"},
        {"tcp": "80"},
        {"login": {}},
        {"memory": "1g"},
        {"cpus": 1.5},
        ["80:80"],
        ["/x:/y"],
        "host",
    ]
)
FIELD_NAMES = st.sampled_from(
    [
        "name",
        "mode",
        "owner",
        "data",
        "content",
        "blob",
        "template",
        "bytes",
        "hosts",
        "days",
        "masks",
        "files",
        "sha256",
        "command",
        "user",
        "environment",
        "directory",
        "ports",
        "ready",
        "watches",
        "stop_signal",
        "stop_timeout",
        "image",
        "engine",
        "entrypoint",
        "mounts",
        "network",
        "hostname",
        "labels",
        "limits",
        "restart",
        "needs",
        "role",
        "sha256",
        "other",
    ]
)


@given(st.sampled_from(EVERY), st.dictionaries(FIELD_NAMES, VALUES, max_size=4))
def test_any_fields_are_a_resource_or_refused(item: dict[str, object], change: dict[str, object]) -> None:
    try:
        resource = parse_resource({**item, **change}, "resource[0]", CONTEXT)
    except Refused:
        return
    assert resource.digest
    assert resource.id.isprintable()
