"""The apps of the tests on a cluster. Each line of output is a JSON object: what
happened, and when by the clock of the node, in ns."""

import http.server
import json
import os
import signal
import socket
import sys
import time

import locksidecar


def say(event, **more):
    print(json.dumps({"event": event, "at": time.time_ns(), **more}), flush=True)


def on_term(_signal, _frame):
    say("term")
    os._exit(0)


def acquire(resource, wait=None, **options):
    """The lock, however often the sidecar has to be asked. Says each new problem once."""
    last = None
    while True:
        try:
            held = locksidecar.lock(resource, wait=wait, **options).acquire()
            say("granted", fence=held.fence)
            return held
        except locksidecar.LockHeld as e:
            say("held", holder=dict(e.metadata))
            return None
        except locksidecar.LockSidecarError as e:
            if e.reason != last:
                last = e.reason
                say("problem", reason=last)
            time.sleep(0.02)


def hold(resource, max_hold=None):
    """Holds the lock for ever, and takes it again whenever it is lost."""
    while True:
        held = acquire(resource, max_hold=float(max_hold) if max_hold else None)
        held.lost.wait()
        say("lost", reason=held.problem.lost_reason)


def once(resource, seconds="0"):
    """Holds the lock for a while."""
    held = acquire(resource)
    time.sleep(float(seconds))
    held.release()
    say("released")


def attempt(resource):
    """Takes the lock if it is free."""
    held = acquire(resource, wait=0)
    if held:
        held.release()


def orphan(resource, file):
    """Dies, when that file is there, with a lock whose connection a child has inherited and keeps."""
    s = socket.socket(socket.AF_UNIX)
    s.connect(os.environ["LOCKSIDECAR_SOCKET"])
    body = json.dumps({"resource": resource}).encode()
    s.sendall(b"POST /v1/hold HTTP/1.1\r\nHost: locksidecar\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    got = b""
    while b"granted" not in got:
        got += s.recv(4096)
    say("granted")
    while not os.path.exists(file):
        time.sleep(0.01)
    child = os.fork()
    if child == 0:
        os.setsid()
        null = os.open("/dev/null", os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        time.sleep(3600)
        os._exit(0)
    say("dies", child=child)
    os._exit(0)


def inherits(pid):
    """Whether that process is there and has a socket."""
    links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
    say("inherits" if any(link.startswith("socket:") for link in links) else "bare")


def lead(port):
    """What the leader runs: it says who it is to everybody who asks."""
    say("granted", fence=int(os.environ["LOCKSIDECAR_FENCE"]))

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(socket.gethostname().encode())

    http.server.ThreadingHTTPServer(("", int(port)), Handler).serve_forever()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, on_term)
    {f.__name__: f for f in (hold, once, attempt, orphan, inherits, lead)}[sys.argv[1]](*sys.argv[2:])
