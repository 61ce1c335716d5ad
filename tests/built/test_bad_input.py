"""What bad input gets: one sentence with the thing, the reason and what to do, exit code 1, and nothing changed."""

from __future__ import annotations

import base64
import hashlib
import http.server
import os
import shutil
import socket
import ssl
import subprocess
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.token import Token
from tests.built.conftest import MakeMachine
from tests.built.lab import PATH, Machine, free_ports, look_of

NOBODY = 65534
SLEEP = '["/bin/sh", "-c", "exec sleep 99999"]'


def assert_refused(one: Machine, done: subprocess.CompletedProcess[str], *parts: str) -> None:
    """One sentence on standard error; nothing else was said but what `up` begins with, and nothing was made."""
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr.startswith("agent: "), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    for part in parts:
        assert part in done.stderr, done.stderr
    assert "error of the agent's own" not in done.stderr
    assert len(done.stdout.splitlines()) <= 1, done.stdout
    assert_untouched(one)


def assert_untouched(one: Machine) -> None:
    """Nothing lies there but the unpacked code, and nothing runs."""
    assert {path.name for path in one.folder.iterdir()} <= {"state", "given"}
    if one.state.exists():
        assert {path.name for path in one.state.iterdir()} <= {"runtime"}
    assert not one.processes()


@pytest.mark.parametrize(
    ("resources", "parts"),
    [
        (
            """
            {kind = "file", name = "/var/lib/twice", content = ""},
            {kind = "directory", name = "/var/lib/between"},
            {kind = "file", name = "/var/lib/twice", content = "x"},
            """,
            ("file:/var/lib/twice", "twice"),
        ),
        (
            f"""
            {{kind = "reserved", name = "ssh", ports = ["22"]}},
            {{kind = "service", name = "web", command = {SLEEP}, ports = ["127.0.0.1:22"]}},
            """,
            ("service:web", "reserved:ssh", "22/tcp"),
        ),
        (
            """
            {kind = "directory", name = "/var/lib/same"},
            {kind = "file", name = "/var/lib/same", content = ""},
            """,
            ("directory:/var/lib/same", "file:/var/lib/same"),
        ),
        ("""{kind = "file", name = "/var/lib/x", contnet = ""},""", ("contnet", 'did you mean "content"?')),
        ("""{kind = "fil", name = "/var/lib/x"},""", ("fil", 'did you mean "file"?')),
        ("""{kind = "file", name = "/var/lib/x", content = "", mode = "999"},""", ("resource[0].mode", "999")),
        ("""{kind = "file", name = "var/lib/x", content = ""},""", ("resource[0].name", "absolute")),
        ("""{kind = "file", name = "/var/lib/x", content = "", owner = "nobdy"},""", ("nobdy",)),
        ("""{kind = "file", name = "/var/lib/x", blob = "none"},""", ("resource[0].blob", '"none"')),
        ("""{kind = "file", name = "/var/lib/x", content = "", needs = ["file:/y"]},""", ("file:/y", "before it")),
        ("""{kind = "reserved", name = "ssh", ports = ["70000"]},""", ("resource[0].ports[0]", "70000", "65535")),
        ("""{kind = "reserved", name = "ssh", ports = ["0"]},""", ("resource[0].ports[0]", "65535")),
        ("""{kind = "reserved", name = "ssh", ports = ["22/icmp"]},""", ("resource[0].ports[0]", "icmp", "tcp or udp")),
        (f"""{{kind = "service", name = "Web_1", command = {SLEEP}}},""", ("resource[0].name", "Web_1", "DNS label")),
        ("""{kind = "service", name = "web", command = ["/no/such/program"]},""", ("/no/such/program", "install")),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, tuple) else "",
)
def test_bad_bundle(machine: MakeMachine, resources: str, parts: tuple[str, ...]) -> None:
    lines = [line.strip() for line in resources.strip().splitlines()]
    # What could be made comes before what can't.
    good = '{kind = "secret", name = "first"},' if "resource[0]" not in " ".join(parts) else ""
    one = machine("x", f'name = "bad"\nresource = [\n{good}\n' + "\n".join(lines) + "\n]\n")
    assert_refused(one, one.run("up", "--once", "--name", "x"), *parts)
    assert not Path("/var/lib/between").exists()


def test_no_toml_and_unknown_fields(machine: MakeMachine) -> None:
    one = machine("x", 'name = "bad"\nparms = {a = 1}\n')
    assert_refused(one, one.run("up", "--name", "x"), "parms", 'did you mean "params"?')
    done = one.run("bundle", "verify")
    assert (done.returncode, "parms" in done.stderr) == (1, True)


def test_bad_options(machine: MakeMachine) -> None:
    one = machine("x")
    for arguments, parts in (
        (("up", "--set", "broker_prt=1"), ('"broker_prt"', 'did you mean "broker_port"?')),
        (("up", "--set", "broker_port"), ("NAME=VALUE",)),
        (("up", "--set", "broker_port=70000"), ("70000", "65535")),
        (("up", "--name", "Not_A_Label"), ("Not_A_Label", "DNS label")),
        (("up", "--name", "x" * 64), ("DNS label",)),
        (("up", "--nmae", "x"), ('did you mean "--name"?', "agent up --help")),
        (("up", "--alive-interval", "0"), ("--alive-interval", "1 to 86400")),
        (("up", "twice"), ('"twice"', "agent up --help")),
        (("stauts",), ('did you mean "status"?',)),
        (("control", "node", "lst"), ('did you mean "list"?',)),
        (("control", "token", "create"), ("NAME",)),
        (("status", "-o", "jsn"), ('"jsn"', 'did you mean "json"?')),
        (("status", "--state", ""), ("names no folder",)),
        (("bundle", "show", "--file", "/nowhere"), ("/nowhere", "No such file")),
        (("bundle", "show", "--file", "/etc/passwd"), ("/etc/passwd", "no agent file")),
        (("status",), ("no node at", "agent up")),
        (("ports",), ("ledger.db is not there",)),
        (("reset", "--yes"), ("nothing to reset",)),
        (("control", "node", "list"), ("not the founder",)),
    ):
        assert_refused(one, one.run(*arguments), *parts)


def token() -> str:
    port = free_ports(1)[0]
    return Token("x", f"amqps://127.0.0.1:{port}", ("0" * 64,), b"s" * 32, "secret").encode()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "mesh-join-1",
        "mesh-join-1..",
        "mesh-join-1.e30." + hashlib.sha256(b"e30").hexdigest()[:8],
        "mesh-join-2.e30.00000000",
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI root@x",
        "\x00\xff\x1b[31m",
        "{}" * 1000,
    ],
    ids=lambda text: repr(text[:30]),
)
def test_malformed_token(machine: MakeMachine, text: str) -> None:
    one = machine("x")
    assert_refused(one, one.run("up", "--token-file", "-", stdin=text), "token")


def test_damaged_token(machine: MakeMachine) -> None:
    one, whole = machine("x"), token()
    for length in (len(whole) - 1, len(whole) - 9, len(whole) // 2, 13, 5):
        assert_refused(one, one.run("up", "--token-file", "-", stdin=whole[:length]), "token")
    for text in (whole.replace("e", "f", 3), whole + whole, base64.b64encode(whole.encode()).decode()):
        assert_refused(one, one.run("up", "--token-file", "-", stdin=text), "token")


def test_unreadable_token_file(machine: MakeMachine) -> None:
    one = machine("x")
    given = one.folder / "given"
    given.write_bytes(os.urandom(5000))
    assert_refused(one, one.run("up", "--token-file", given), "not a join token")
    assert_refused(one, one.run("up", "--token-file", one.folder), "token file", "is a directory")
    assert_refused(one, one.run("up", "--token-file", one.folder / "none"), "token file", "is not there")
    closed = one.run("up", "--token-file", "-", before=("sh", "-c", 'exec "$@" <&-', "sh"))
    assert_refused(one, closed, "standard input, which is closed")


def test_token_of_a_mesh_that_is_away_is_waited_for(machine: MakeMachine) -> None:
    one = machine("x")
    agent = one.up("--name", "other", "--token-file", "-", stdin=token())
    agent.wait_for("no link to the mesh: nothing listens at amqps://127.0.0.1:")
    assert "the token is for x, so that is this node's name, not other" in agent.lines
    status = one.json("status")
    assert (status["node"], status["role"], status["link"]["state"]) == ("x", "joiner", "down")
    assert agent.end() == 0


def test_damaged_file(machine: MakeMachine) -> None:
    one = machine("x")
    whole = one.file.read_bytes()
    one.file = Path(shutil.copy(one.file, one.folder / "given"))
    for length in (20_000, len(whole) // 2, len(whole) - 22, len(whole) - 1):
        one.file.write_bytes(whole[:length])
        assert_refused(one, one.run("up", "--once"), "is incomplete", "copy it here again")


def repacked(file: Path, place: Path, member: str, content: bytes | None) -> Path:
    """The same archive with one member's content changed, or without it; its checksums are right."""
    with zipfile.ZipFile(file) as source:
        first = min(entry.header_offset for entry in source.infolist())
        with place.open("wb") as target:
            target.write(file.read_bytes()[:first])
            with zipfile.ZipFile(target, "w") as archive:
                for entry in source.infolist():
                    data = source.read(entry)
                    if entry.filename == member:
                        if content is None:
                            continue
                        data = content
                    archive.writestr(entry, data)
    place.chmod(0o755)
    return place


def test_blob_that_is_not_what_was_packed(machine: MakeMachine) -> None:
    text = """
    name = "blobs"
    [[resource]]
    kind = "secret"
    name = "first"
    [[resource]]
    kind = "file"
    name = "/var/lib/never-made"
    blob = "big.bin"
    """
    one = machine("x", text, {"big.bin": b"\x01" * 3_000_000})
    packed = one.file
    content = packed.read_bytes()
    at = content.index(b"\x01" * 1000) + 500
    one.file = Path(shutil.copy(packed, one.folder / "given"))
    # One bit of it, as a disk or a cable changes it; a byte lost.
    for changed in (b"\x03", b""):
        one.file.write_bytes(content[:at] + changed + content[at + 1 :])
        assert_refused(one, one.run("up", "--once", "--name", "x"), "big.bin", "SHA-256", "again, whole")
        verified = one.run("bundle", "verify")
        assert (verified.returncode, "big.bin" in verified.stderr) == (1, True)
    assert not Path("/var/lib/never-made").exists()
    one.file = packed
    assert one.run("bundle", "verify").returncode == 0


def test_file_without_a_bundle(machine: MakeMachine) -> None:
    one = machine("x")
    packed = one.file
    for member in ("bundle/bundle.toml", "bundle/manifest.json"):
        one.file = repacked(packed, one.folder / "given", member, None)
        assert_refused(one, one.run("up", "--once", "--name", "x"), "copy the file here again, whole")


def test_not_root(machine: MakeMachine) -> None:
    one = machine("x")
    home = one.folder / "given"
    home.mkdir()
    one.file = Path(shutil.copy(one.file, home))
    os.chown(home, NOBODY, NOBODY)
    for arguments in (("up", "--once"), ("up", "--once", "--state", str(home / "state"))):
        done = one.run(*arguments, environment={"HOME": str(home), "XDG_CACHE_HOME": str(home)}, user=NOBODY)
        assert done.returncode == 1
        assert done.stderr.startswith("agent: ")
        assert done.stderr.count("\n") == 1
        assert "root" in done.stderr
    assert_untouched(one)
    assert sorted(path.name for path in home.iterdir()) == ["agent", "mesh-agent"]


HIDE = 'for each in "$0"; do mount --bind /dev/null "$each" || exit 99; done; exec "$@"'


def hiding(path: Path) -> tuple[str, ...]:
    """Words before a command that runs it where there is nothing to be used at this path."""
    return ("unshare", "--mount", "sh", "-c", HIDE, str(path))


def test_no_openssl(machine: MakeMachine) -> None:
    program = Path(shutil.which("openssl", path=PATH) or "").resolve()
    one = machine(
        "x", 'name = "x"\n[[resource]]\nkind = "secret"\nname = "first"\n[[resource]]\nkind = "certificate"\nname = "y"'
    )
    assert_refused(one, one.run("up", "--once", "--name", "x", before=hiding(program)), "openssl", "install it")
    assert one.run("up", "--once", "--name", "x").returncode == 0


def test_python_without_sqlite(machine: MakeMachine) -> None:
    python = shutil.which("python3", path=PATH) or ""
    library = subprocess.run(
        [python, "-c", "import _sqlite3; print(_sqlite3.__file__)"], capture_output=True, text=True, check=True
    ).stdout.strip()
    one = machine("x")
    done = one.run("up", "--once", before=hiding(Path(library)))
    assert_refused(one, done, "sqlite3", "install")


def test_port_that_another_program_holds(machine: MakeMachine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        one = machine(
            "x",
            f"""
            name = "held"
            [[resource]]
            kind = "secret"
            name = "first"
            [[resource]]
            kind = "service"
            name = "web"
            command = {SLEEP}
            ports = ["{port}"]
            """,
        )
        done = one.run("up", "--once", "--name", "x")
        assert_refused(one, done, "service web", f"127.0.0.1:{port}/tcp", f"process {os.getpid()} (")
    assert one.run("up", "--once", "--name", "x").returncode == 0


def test_folder_that_is_somebody_elses(machine: MakeMachine) -> None:
    one = machine("x")
    shutil.rmtree(one.state / "runtime")
    (one.state / "thesis.txt").write_text("mine")
    before = look_of(one.state)
    for command in (("up", "--once"), ("status",), ("reset", "--yes")):
        done = one.run(*command)
        assert (done.returncode, done.stdout.count("\n") <= 1) == (1, True)
        assert done.stderr.startswith("agent: ")
        assert done.stderr.count("\n") == 1
    after = look_of(one.state)
    assert {path: after[path] for path in before} == before
    assert after.keys() == before.keys()


class Management(http.server.BaseHTTPRequestHandler):
    """A management API that knows nobody."""

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(401)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_POST = do_PUT  # noqa: N815 - the library's names

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@contextmanager
def management(folder: Path) -> Iterator[tuple[int, str]]:
    """Its port and its certificate's fingerprint."""
    key, certificate = folder / "key", folder / "crt"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
         "-subj", "/CN=x", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Management)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        der = ssl.PEM_cert_to_DER_cert(certificate.read_text())
        yield server.server_port, hashlib.sha256(der).hexdigest()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def write_settings(one: Machine, port: int, pin: str) -> None:
    (one.state / "control").mkdir(parents=True, exist_ok=True)
    (one.state / "control" / "control.toml").write_text(
        f"""
        broker = "amqps://127.0.0.1:{port}"
        management = "https://127.0.0.1:{port}"
        account = "control"
        password = "wrong"
        fingerprints = ["{pin}"]
        advertised = ""
        node = "x"
        token_file = "{one.state}/control/founder.token"
        """
    )


def test_management_that_is_not_as_it_should_be(machine: MakeMachine, tmp_path: Path) -> None:
    one = machine("x")
    silent = free_ports(1)[0]
    with management(tmp_path) as (port, pin), socket.create_server(("127.0.0.1", 0)) as mute:
        write_settings(one, port, pin)
        serving = one.start("control", "serve")
        serving.wait_for("does not take the password of control")
        assert serving.end() == 0
        assert serving.output.count("does not take the password") == 1
        # Counted by its messages: it goes on trying, and says it once.
        for where, pinned, part in (
            (port, pin, "does not take the password of control"),
            (port, "0" * 64, "certificate"),
            (silent, pin, "nothing listens at"),
            (mute.getsockname()[1], pin, "does not answer in time"),
        ):
            write_settings(one, where, pinned)
            before = look_of(one.state / "control")
            done = one.run("control", "token", "create", "b")
            assert (done.returncode, done.stdout) == (1, "")
            assert done.stderr.startswith("agent: ")
            assert done.stderr.count("\n") == 1
            assert part in done.stderr
            assert f"127.0.0.1:{where}" in done.stderr
            assert "wrong" not in done.stderr
            after = look_of(one.state / "control")
            assert {path for path in after if after[path] != before.get(path)} <= {
                str(one.state / "control" / name) for name in ("store.db-shm", "store.db-wal", "store.db")
            }
    assert '"nodes": []' in one.ask("control", "node", "list", "-o", "json")


def test_damaged_settings_of_the_control_plane(machine: MakeMachine) -> None:
    one = machine("x")
    write_settings(one, 1, "0" * 64)
    path = one.state / "control" / "control.toml"
    for content, part in (("broker = ", "is not TOML"), ("brokr = 1\n", "control.toml"), ("", "is missing")):
        path.write_text(content)
        done = one.run("control", "node", "list")
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert part in done.stderr


def test_bad_list(machine: MakeMachine) -> None:
    """Nothing of it needs a broker: it is refused before anything is signed."""
    one = machine("x")
    given = one.folder / "given"
    for text, part in (
        ("[", "TOML"),
        ("{", "JSON"),
        ('{"resorce": []}', "resorce"),
    ):
        given.write_text(text)
        done = one.run("control", "declare", "x", given)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert part in done.stderr
    done = one.run("control", "declare", "x", one.folder / "none")
    assert "is not there" in done.stderr


def test_output_that_can_not_be_written(machine: MakeMachine) -> None:
    one = machine("x")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [one.file, "bundle", "show"], env=one.environment(), stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert done.stderr == "agent: what was printed could not be written: No space left on device\n"


def test_damaged_identity_and_ledger_are_told(machine: MakeMachine) -> None:
    one = machine("x", 'name = "x"\n[[resource]]\nkind = "secret"\nname = "first"\n')
    assert one.run("up", "--once", "--name", "x").returncode == 0
    for name, content in (("identity/self.json", b"{"), ("identity/node.key", b"short"), ("ledger.db", b"x" * 5000)):
        path = one.state / name
        kept = path.read_bytes()
        path.write_bytes(content)
        before = look_of(one.state / "identity", one.state / "secrets", path)
        done = one.run("up", "--once")
        assert done.returncode == 1, (name, done.stdout, done.stderr)
        assert done.stderr.count("\n") == 1
        assert f"{path} is damaged" in done.stderr
        assert look_of(one.state / "identity", one.state / "secrets", path) == before
        path.write_bytes(kept)
    assert one.run("up", "--once").returncode == 0
