"""The protocol of one session, without any input or output.

Bytes that the sidecar sent go in by `feed`; what is to be sent comes out of `outbox`.
In between stand the rules of the API: which answer is whose, who queues, what an answer
does to what is held (see _holds.py). There is no socket, no thread and no lock here: a shell (see
_connection.py) guards each call with one mutex, and moves the bytes. So threads, tasks,
forks and signals meet the same rules.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Mapping
from socket import MSG_DONTWAIT
from typing import Any

from ._call import PLAIN_RELEASE, RELEASED, Call, decode, release_of
from ._clock import boot_time
from ._errors import LockLost, LockSidecarError, NotHolder, SidecarGone, SidecarSilent, from_status
from ._hold import Hold
from ._holds import Holds
from ._model import Wanted, seconds

AT_ONCE = (MSG_DONTWAIT,)
# So many acquires of one session the sidecar takes at a time, by default.
_MAX_ASKING = 1000
# From here on an acquire queues here if another for the same resource is on its way. A
# resource of which none is still gets through: its holder may wait for nothing else.
_FEW_ASKING = 800
# After so long without a word a waiter asks whether the sidecar is there, and after so
# long without an answer it takes it for frozen.
PING_AFTER = 5.0
PING_LIMIT = 5.0


def _turn(call: Call) -> tuple[bool, int]:
    """Its turn among those that queue here. Tries go first: they are answered at once."""
    return call.wanted is not None and call.wanted.wait != 0, call.place


class Core(Holds):
    def __init__(self, mutex: Any) -> None:
        super().__init__(mutex)
        # What is to be sent, how many bytes of it the system took, each time, and how many
        # were ever put in. One attribute: an interrupt finds the old values or the new ones.
        self.outbox: tuple[bytes, list[int], int] = (b"", [], 0)
        self.error: LockSidecarError | None = None  # why the session ended
        self.why_lost = ("", "")  # and with it all that was held: the reason and the message
        self.id = ""
        self.draining = False
        self.calls: dict[str, Call] = {}
        self.limit = _MAX_ASKING
        self._few = _FEW_ASKING
        self._waiting: list[Call] = []  # acquires that queue here, by their places
        self._stuck = False  # for none of them there is room as long as few are asked for, and what they want is
        self._places = 0
        self.inbox: list[bytes] = []  # what came and was not taken yet
        self._rest = b""  # half a line
        self.answers = self.others = 0  # how many lines of both kinds were taken
        self._last_id = 0
        self._silent = 0.0  # for how long a ping has had no answer
        self._quiet = 0.0  # for how long nothing was heard
        self._waited_at = 0.0
        self._ping: Call | None = None

    @property
    def due(self) -> bool:
        """Whether somebody waits for an answer."""
        return bool(self.calls or self._waiting)

    # Requests.

    def post(self, call: Call) -> None:
        """Send it."""
        if self.error is not None:
            call.unsent = True
            call.finish(self.error.again())
            return
        if call.wanted is not None:
            self._places += 1
            call.place = self._places
            if self.calls and self._crowded(call.wanted):
                self._queue(call)
                return
        self._send(call)

    def post_alone(self, call: Call, rest: bytes, now: float, send: Callable[[bytes, int], int]) -> bool:
        """The same in fewer steps, where nobody else asks and nothing is left to be sent. False: the outbox has the rest.

        rest: of its line, after the number. now: by boot_time, before it is sent.
        """
        self._last_id = number = self._last_id + 1
        call.head = head = b'{"requestId":"%d","' % number
        call.sent = now
        call.id = name = str(number)
        line = head + rest
        written: list[int] = []
        call.start = start = self.outbox[2]
        after = start + len(line)
        wanted = call.wanted
        if wanted is not None:
            self._places = call.place = self._places + 1
            self.asking[wanted.resources] = 1
        try:
            self.calls[name] = call
            self.outbox = line, written, after
            # In one step for signals: what was sent is noted, whatever interrupts.
            written.extend(map(send, (line,), AT_ONCE))
            if written[0] != len(line):
                return False
            self.outbox = b"", [], after
            return True
        except OSError:
            return False
        except BaseException:  # an interrupt
            if self.outbox[2] == start:
                self.calls.pop(name, None)
            raise

    def _queue(self, call: Call) -> None:
        assert call.wanted is not None
        insort(self._waiting, call, key=_turn)
        self._stuck = self._stuck and call.wanted.resources in self.asking

    def _crowded(self, wanted: Wanted) -> bool:
        total = len(self.calls)
        return total >= self._few and (total >= self.limit or wanted.resources in self.asking)

    def _send(self, call: Call) -> None:
        self._last_id = number = self._last_id + 1
        line = call.line(number, boot_time())
        wanted = call.wanted
        if wanted is not None:
            self.asking[wanted.resources] = self.asking.get(wanted.resources, 0) + 1
        data, written, call.start = self.outbox
        try:
            self.calls[call.id] = call
            self.outbox = (data[sum(written) :] + line if data else line, [], call.start + len(line))
        except BaseException:  # an interrupt
            if self.outbox[2] == call.start:
                self.calls.pop(call.id, None)
            raise

    def release(self, call: Call, entry: Call) -> None:
        """Send the release of what an acquire got, which is over for the app from now on.

        It is one and the same for the sidecar however often it is sent: so it goes first,
        and an interrupt in between leaves an entry that can be released again.
        """
        self.post(call)
        self.left(entry)

    def keep_no_handle(self, call: Call) -> None:
        """Nobody gets the handle of what was to be detached: see that it is free, now or when the answer has come."""
        if not call.id or call.abandoned or call.error is not None:
            return
        hold = call.about
        assert hold is not None
        call.abandoned = True
        if detached := call.answer.get("detached"):
            self.post(Call("releaseHandle", {"handle": detached["handle"]}))
        else:
            self._lose_detached(hold, "nobody waited for it to be detached")

    def _lose_detached(self, hold: Hold, why: str) -> None:
        self.lose(hold, LockLost(f"the lock on {hold.resource!r} is lost: {why}", lost_reason="NOT_HOLDER"))

    def abandon(self, call: Call) -> None:
        """Nobody waits for it any more: see that nothing is left behind.

        What was attached is for the next one who has the handle: the sidecar detaches it again when the call is cancelled.
        """
        if call.wanted is None or call.abandoned:
            return
        if call.hold is not None:
            if call in call.hold.entered and call.wanted.handle:
                self.post(Call("cancel", {"requestId": call.id}))
                self.left(call)
            elif call in call.hold.entered:
                self.release(release_of(call), call)
        elif not call.id:
            call.abandoned = True
            if call in self._waiting:
                self._waiting.remove(call)
        elif not call.done and self.error is None:
            self.post(Call("cancel", {"requestId": call.id}))
            call.abandoned = True  # last: an interrupt before it has at most sent a cancel too many

    def waits_here(self, call: Call) -> bool:
        return not call.id and call in self._waiting

    # What the sidecar says.

    def feed(self, data: bytes) -> None:
        """Bytes that came. SidecarGone: they are no lines of a sidecar."""
        self.inbox.append(data)
        self.take()

    def take(self) -> None:
        """Take what is in the inbox."""
        self._quiet = self._silent = 0.0
        *lines, self._rest = (self._rest + b"".join(self.inbox)).split(b"\n")
        self.inbox.clear()
        for line in lines:
            try:
                self._line(decode(line))
            except (ValueError, KeyError, TypeError, AttributeError) as e:
                raise SidecarGone(f"what answers is no sidecar, or an older one than this client: {e!r}") from e

    def take_own(self, home: object) -> bool:
        """Take what is in the inbox if that is only grants and releases for this call, or for tasks of this loop.

        False: it stays there, for one whom no interrupt can strike in the middle of what
        concerns others. An interrupt here, at any step, leaves the inbox as it was. To take
        it once more does then what is left to do.
        """
        inbox, calls = self.inbox, self.calls
        if self._rest or self._waiting:
            return False
        try:
            if len(inbox) == 1 == len(calls) and isinstance(home, Call) and home.id in calls:  # in fewer steps, if it is like most
                data, head = inbox[0], home.head
                if home.wanted is not None:
                    plain = data.startswith(head) and self.granted_plainly(home, home.wanted, data, len(head))
                    if plain:
                        self.asking.clear()
                        self._stuck = False
                else:
                    plain = home.kind == "release" and data == head + PLAIN_RELEASE
                    if plain:
                        home.answer = RELEASED
                if plain:
                    if home.wake is None:
                        home.done = True
                    else:
                        home.finish()
                    calls.clear()
                    self._quiet = self._silent = 0.0
                    inbox.clear()
                    return True
            data = b"".join(inbox)
            if data[-1:] != b"\n":
                return False
            own: list[tuple[Call, Mapping[str, Any]]] = []
            for line in data[:-1].split(b"\n"):
                m = decode(line)
                call = calls[m["requestId"]]
                if (call is not home and call.home is not home) or "error" in m:
                    return False
                own.append((call, m))
            for call, m in own:
                self._take_answer(call, m)
        except (ValueError, KeyError, TypeError, AttributeError):
            return False
        self._quiet = self._silent = 0.0
        inbox.clear()
        return True

    def glance(self, stands: list[bytes]) -> None:
        """Hear news of the lease, and losses, of what will be taken later. To hear them once more then changes nothing."""
        for line in (self._rest + b"".join(stands)).split(b"\n")[:-1]:
            try:
                event = decode(line).get("event") or {}
                if lost := event.get("lost"):
                    self.told(lost)
                elif lease := event.get("lease"):
                    self.leased(lease)
            except (ValueError, KeyError, TypeError, AttributeError):
                pass  # who takes it tells

    def _line(self, m: Mapping[str, Any]) -> None:
        id_ = m.get("requestId")
        if not id_:
            self.others += 1
            if event := m.get("event"):
                self._event(event)
            elif error := m.get("error"):  # its last word
                why = from_status(error)
                self.end(why, "SIDECAR_GONE", why.message)
            return
        call = self.calls.get(id_)
        if call is None:
            return
        if error := m.get("error"):
            self.answers += 1
            del self.calls[id_]  # it may be sent again
            self._refused(call, from_status(error))
            if call.wanted is not None:
                self._asked(call.wanted)
        else:
            self._take_answer(call, m)
        self._next()

    def _take_answer(self, call: Call, m: Mapping[str, Any]) -> None:
        if granted := m.get("granted"):
            self._granted(call, granted)
        elif "released" not in m:
            self._answered(call, m)
        call.answer = m
        self._done(call)

    def _done(self, call: Call) -> None:
        self.answers += 1
        call.finish()
        self.calls.pop(call.id, None)
        if call.wanted is not None:
            self._asked(call.wanted)

    def _asked(self, wanted: Wanted) -> None:
        """It was answered."""
        asking = self.asking
        if not self.calls:
            asking.clear()  # also what an interrupt has left
            self._stuck = False
        elif (left := asking.get(wanted.resources, 0) - 1) > 0:
            asking[wanted.resources] = left
        else:
            asking.pop(wanted.resources, None)
            self._stuck = False
        if self.early and not asking:
            self.early.clear()

    def _next(self) -> None:
        """Send what has queued here, as far as there is room."""
        at = 0
        while at < len(self._waiting) and len(self.calls) < self.limit:
            if self._stuck and len(self.calls) >= _FEW_ASKING:
                return
            call = self._waiting[at]
            assert call.wanted is not None
            if self._crowded(call.wanted):
                at += 1
                self._stuck = at == len(self._waiting)
            else:
                del self._waiting[at]
                self._send(call)

    def _answered(self, call: Call, m: Mapping[str, Any]) -> None:
        if opened := m.get("opened"):
            self.id = str(opened["sessionId"])
            self.margin = seconds(opened.get("leaseMargin"))
            self.clock.answered(call.sent, seconds(opened["countedAt"]))
        elif changed := m.get("downgraded") or m.get("extended"):
            self.changed(call, changed)
        elif detached := m.get("detached"):
            self._detached(call, detached)

    def _detached(self, call: Call, m: Mapping[str, Any]) -> None:
        """A hold has left the session. Where nobody waits for its handle, it is released."""
        hold = call.about
        assert hold is not None
        hold.left_by = "detached"
        for entry in list(hold.entered):
            self.left(entry)
        if call.abandoned:
            self.post(Call("releaseHandle", {"handle": m["handle"]}))

    def _granted(self, call: Call, m: Mapping[str, Any]) -> None:
        assert call.wanted is not None
        if self.granted(call, m):
            return
        if call.wanted.handle:
            self.left(call)  # it has been cancelled
        else:
            self.release(release_of(call), call)

    def _refused(self, call: Call, error: LockSidecarError) -> None:
        if (
            call.wanted is not None
            and not call.abandoned
            and error.reason == "LIMIT_EXCEEDED"
            and error.metadata.get("limit") in ("waiters", "requests in flight")
            and self.calls
        ):  # fewer than by default: queue here for the rest
            self.limit = max(1, min(self.limit, int(error.metadata.get("max", 0)) or len(self.calls)))
            self._few = min(_FEW_ASKING, self.limit)
            call.id = ""
            self._queue(call)
            return
        hold = call.about
        if hold is not None and isinstance(error, (LockLost, NotHolder)):
            problem = error if isinstance(error, LockLost) else None
            if problem is None and hold.entered:
                problem = LockLost(f"the lock on {hold.resource!r} is lost: {error.message}", lost_reason="NOT_HOLDER")
            if problem is not None:
                self.lose(hold, problem)
                error = hold.problem or problem
                error = error.again()
        elif hold is not None and call.kind == "detach" and error.reason == "STORE_UNAVAILABLE":
            self._lose_detached(hold, "the store did not answer when it was to be detached")
        call.finish(error)

    def _event(self, event: Mapping[str, Any]) -> None:
        if lease := event.get("lease"):
            self.leased(lease)
        elif lost := event.get("lost"):
            self.told(lost)
        elif "draining" in event:
            self.draining = True

    # Ends.

    def end(self, error: LockSidecarError, lost_reason: str, message: str) -> bool:
        """End the session, once: everything is lost, and nobody waits any more."""
        if self.error is not None:
            return False
        self.why_lost = lost_reason, message
        self.error = error
        self.tell_end()
        return True

    def tell_end(self) -> None:
        """Tell all that it has ended, also whom an interrupt in the middle of this has left out, and who came since: a
        signal handler may end it while its own thread is about to ask for something."""
        error, (lost_reason, message) = self.error, self.why_lost
        assert error is not None
        for hold in list(self.holds.values()):
            self.lose(hold, LockLost(f"the lock on {hold.resource!r} is lost: {message}", lost_reason=lost_reason))
        data, written, queued = self.outbox
        sent = queued - len(data) + sum(written)
        for call in [*self.calls.values(), *self._waiting]:
            call.unsent = not call.id or call.start >= sent
            call.finish(error.again())
        self.calls, self._waiting, self.asking = {}, [], {}

    # Time.

    def waited(self) -> None:
        """Somebody waits. After a while without a word the sidecar is asked whether it is there.

        A process that was stopped for longer counts that as one step: what came meanwhile
        is still to be read.
        """
        now = boot_time()
        passed = min(now - self._waited_at, PING_AFTER)
        self._waited_at = now
        self._quiet += passed
        if self.error is not None:
            return
        if self._ping is None or self._ping.done:
            if self._quiet >= PING_AFTER:
                self._silent = 0.0
                self._ping = Call("keepAlive", {})
                self._send(self._ping)
            return
        self._silent += passed
        if self._silent < PING_LIMIT:
            return
        self._ping, self._quiet = None, 0.0
        for call in [*self.calls.values(), *self._waiting]:
            if call.wanted is not None and not call.abandoned:
                self.abandon(call)
                call.finish(SidecarSilent("the sidecar does not answer; it may be frozen"))
