"""What engines say of a container, as they said it: podman 4.3.1 and docker 20.10.24, cut to what is read."""

from __future__ import annotations

import json
from ipaddress import ip_address
from typing import Any

import pytest

from agent.errors import Refused
from agent.fields import Fields
from agent.host.endpoints import Endpoint, Protocol
from agent.kinds.container import state
from agent.kinds.container.state import Phase, State

ID = "0cea86ffdbf9cbeb1acf87c1081b587e4d363e685647ecb3afcdb82f4a4704ab"
IMAGE = "8b7495e2cc509e42e27cbbe947632f024fd9d0b66c8c2778a2e3f8fe564992fb"
VOLUME = "1f5973f6239a644aaeb577f21ecaefde38c990cd25f3cf37602ccbebbd7823fb"
MARK = '{"a":"b"}'

PODMAN: dict[str, Any] = json.loads(f"""
{{"Id": "{ID}", "Created": "2026-11-30T22:03:19.734426798Z", "Path": "/bin/busybox", "Args": ["httpd", "-f"],
 "State": {{"OciVersion": "1.0.2-dev", "Status": "running", "Running": true, "Paused": false, "Restarting": false,
  "OOMKilled": false, "Dead": false, "Pid": 13831, "ConmonPid": 13811, "ExitCode": 0, "Error": "",
  "StartedAt": "2026-11-30T22:03:20.175105906Z", "FinishedAt": "0001-01-01T00:00:00Z",
  "Health": {{"Status": "", "FailingStreak": 0, "Log": null}}}},
 "Image": "{IMAGE}", "ImageName": "localhost/base:1", "Name": "x",
 "Mounts": [
  {{"Type": "volume", "Name": "data", "Source": "/v/data/_data", "Destination": "/data", "Driver": "local", "Mode": "",
   "Options": ["nosuid", "nodev", "rbind"], "RW": true, "Propagation": "rprivate"}},
  {{"Type": "volume", "Name": "{VOLUME}", "Source": "/v/{VOLUME}/_data", "Destination": "/anon", "Driver": "local",
   "Mode": "", "Options": ["nosuid", "nodev", "rbind"], "RW": true, "Propagation": "rprivate"}},
  {{"Type": "bind", "Source": "/etc/hostname", "Destination": "/h", "Driver": "", "Mode": "", "Options": ["rbind"],
   "RW": false, "Propagation": "rprivate"}}],
 "Config": {{"Hostname": "0cea86ffdbf9", "Labels": {{"mesh-agent": {json.dumps(MARK)}}}, "StopSignal": 15,
  "StopTimeout": 7}},
 "HostConfig": {{"NetworkMode": "bridge",
  "PortBindings": {{"80/tcp": [{{"HostIp": "127.0.0.1", "HostPort": "18080"}}]}}}}}}
""")

DOCKER: dict[str, Any] = json.loads(f"""
{{"Id": "{ID}", "Created": "2026-11-30T22:11:40.556802998Z", "Name": "/x", "Image": "sha256:{IMAGE}",
 "State": {{"Status": "created", "Running": false, "Paused": false, "Restarting": false, "OOMKilled": false,
  "Dead": false, "Pid": 0, "ExitCode": 128, "Error": "driver failed", "StartedAt": "0001-01-01T00:00:00Z",
  "FinishedAt": "0001-01-01T00:00:00Z"}},
 "HostConfig": {{"Binds": null, "NetworkMode": "default", "PortBindings": {{
   "80/tcp": [{{"HostIp": "", "HostPort": "18099"}}, {{"HostIp": "::1", "HostPort": "18099"}}],
   "53/udp": [{{"HostIp": "10.0.0.1", "HostPort": "53"}}], "99/sctp": [{{"HostIp": "", "HostPort": "99"}}]}}}},
 "Mounts": [],
 "Config": {{"Hostname": "caf31a0b7900", "Labels": null, "StopSignal": "SIGINT"}}}}
""")


def read(said: dict[str, Any], **changed: object) -> State:
    return state.read(Fields({**said, "State": {**said["State"], **changed}}, "podman"))


def test_a_running_one_of_podmans() -> None:
    assert read(PODMAN) == State(
        id=ID,
        name="x",
        status="running",
        pid=13831,
        started="2026-11-30T22:03:20.175105906Z",
        image=IMAGE,
        labels={"mesh-agent": MARK},
        anonymous={"/anon": VOLUME},
        published=(Endpoint(Protocol.TCP, ip_address("127.0.0.1"), 18080),),
        stop_timeout=7,
    )


def test_one_of_dockers_that_was_never_started() -> None:
    found = read(DOCKER)
    assert (found.name, found.image, found.started, found.labels, found.stop_timeout) == ("x", IMAGE, "", {}, 10)
    assert [str(endpoint) for endpoint in found.published] == [
        "0.0.0.0:18099/tcp",
        "[::1]:18099/tcp",
        "10.0.0.1:53/udp",
    ]
    assert found.phase is Phase.HALF_MADE


@pytest.mark.parametrize(
    ("status", "started", "phase"),
    [
        ("running", "2026-11-30T22:03:20Z", Phase.RUNNING),
        ("created", "0001-01-01T00:00:00Z", Phase.HALF_MADE),
        # After a reboot, podman says `created` of what has run.
        ("created", "2026-11-30T22:03:20Z", Phase.STOPPED),
        ("exited", "2026-11-30T22:03:20Z", Phase.STOPPED),
        ("stopped", "2026-11-30T22:03:20Z", Phase.STOPPED),
        ("paused", "2026-11-30T22:03:20Z", Phase.ODD),
        ("restarting", "2026-11-30T22:03:20Z", Phase.ODD),
        ("dead", "2026-11-30T22:03:20Z", Phase.ODD),
        ("removing", "2026-11-30T22:03:20Z", Phase.ODD),
    ],
)
def test_how_far_it_is(status: str, started: str, phase: Phase) -> None:
    assert read(PODMAN, Status=status, StartedAt=started).phase is phase


def test_another_start_is_another_run() -> None:
    assert read(PODMAN).run != read(PODMAN, StartedAt="2026-11-30T23:00:00Z").run


def test_an_answer_without_what_every_engine_gives_is_refused() -> None:
    with pytest.raises(Refused, match=r"^State\.Status: is missing"):
        state.read(Fields({"Id": ID, "Name": "x", "Image": IMAGE}, "podman"))
