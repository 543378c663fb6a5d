"""An HTTP handler that carries out a request once, however often it is sent.

    python3 scenarios/idempotency.py http://BANK [--port 8000]

    curl http://127.0.0.1:8000/withdrawals -H 'Idempotency-Key: 5f3a' -d 10000

The key is what is done once. Who comes again with it gets the answer of the first time, from
whatever process at whatever machine. The sidecar is asked by lines, and nothing but the standard library
is needed. The bank is `POST /transfers?key=…&cents=…&fence=…`, and `GET /transfers?key=…&fence=…` to ask
whether it was done. It refuses a fence that is smaller than one that it has seen for the same key.
"""

from __future__ import annotations

import argparse
import http.server
import json
import os
import re
import socket
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, TextIO

KEEP = "172800s"  # for two days the answer is the same


class RefusedError(Exception):
    """The bank has refused: nothing was done, that is sure."""


class NotNowError(Exception):
    """Another process is at it, or nobody knows how it ended: send it again."""


def ask(sidecar: TextIO, request: dict[str, Any]) -> dict[str, Any]:
    sidecar.write(json.dumps({"requestId": "1", **request}) + "\n")
    sidecar.flush()
    for line in sidecar:
        answer: dict[str, Any] = json.loads(line)
        if answer["requestId"]:  # else it is news
            return answer
    raise NotNowError("the sidecar is gone")


def withdraw(bank: str, key: str, cents: int) -> str:
    """The transfer. The connection is the session: whatever ends it leaves the outcome unknown."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ["LOCKSIDECAR_SOCKET"])
        with connection.makefile("rw") as sidecar:
            ask(sidecar, {"open": {"name": "withdrawals"}})
            acquire = {"resource": f"withdrawals/{key}", "wait": "5s", "once": {"keep": KEEP}}
            answer = ask(sidecar, {"acquire": acquire})
            if error := answer.get("error"):
                detail = error["details"][0]
                if detail["reason"] == "ALREADY_DONE":
                    return str(detail["metadata"]["note"])
                raise NotNowError(error["message"])
            granted = answer["granted"]
            release = {"lockId": granted["lockId"]}
            try:
                asks = granted.get("previous", {}).get("state") == "UNKNOWN"
                transfer = pay(bank, key, cents, granted["fence"], asks)
            except RefusedError as e:
                ask(sidecar, {"release": {**release, "outcome": "FAILED", "note": str(e)}})
                raise
            answer = ask(sidecar, {"release": {**release, "outcome": "SUCCEEDED", "note": transfer}})
            if error := answer.get("error"):
                raise NotNowError(error["message"])
            return transfer


def pay(bank: str, key: str, cents: int, fence: str, asks: bool) -> str:
    """Pays, unless it was paid by an attempt of which nobody knows how it ended."""
    query = urllib.parse.urlencode({"key": key, "cents": cents, "fence": fence})
    for method in ["GET", "POST"] if asks else ["POST"]:
        try:
            request = urllib.request.Request(f"{bank}/transfers?{query}", method=method)
            with urllib.request.urlopen(request, timeout=10) as response:
                return str(response.read().decode())
        except urllib.error.HTTPError as e:
            with e:
                if method == "POST" and e.code == 402:
                    raise RefusedError("the bank has refused") from None
                if method == "POST" or e.code != 404:
                    raise
    raise AssertionError("the last request returns or raises")


class Handler(http.server.BaseHTTPRequestHandler):
    bank = ""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        key = self.headers.get("Idempotency-Key", "")
        if not re.fullmatch(r"[\w-]{1,64}", key, re.ASCII) or not body.isdigit():
            return self.answer(400, "an Idempotency-Key and a number of cents are needed")
        try:
            self.answer(200, withdraw(self.bank, key, int(body)))
        except RefusedError as e:
            self.answer(402, str(e))
        except (NotNowError, OSError) as e:
            self.answer(503, f"send it again: {e}")

    def answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *args: Any) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bank", help="its URL")
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    Handler.bank = options.bank
    with http.server.ThreadingHTTPServer(("127.0.0.1", options.port), Handler) as server:
        print(f"http://127.0.0.1:{server.server_port}/withdrawals", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
