from tests.broker.plane import Newcomer, Plane
from agent.resources import Document
import time, json


def test_whole_line(rabbit, ground, caplog):
    plane = Plane(rabbit, ground)
    plane.start()
    try:
        print(plane.founder_token.read_text())
        node = plane.join("a")
        with node:
            node.report(0, carried=[1, 2])
            print(plane.wait_for("a", lambda n: n.carried == (1, 2)))
            for at in range(5):
                with plane.control() as control:
                    began = time.monotonic()
                    declared = control.declare(
                        "a", Document({}, ({"kind": "file", "name": "/etc/x", "content": f"{at}"},)), {}
                    )
                    t1 = time.monotonic()
                    d = node.declaration()
                    t2 = time.monotonic()
                    node.report(declared.serial, applied=["file:/etc/x"])
                    print(control.wait(declared, 5), t1 - began, t2 - t1, time.monotonic() - t2)
            print(d)
        print(rabbit.accounts().list_accounts())
        time.sleep(1.5)
        print(rabbit.accounts().list_accounts())
        with plane.control() as c:
            print(c.mesh())
        print(caplog.text)
    finally:
        plane.stop()
    assert 0
