//! Reading: by the session's thread, and by those who are about to find a hold over.

use super::{End, Session, LONGEST, MAX_LOOK};
use crate::acquires::full;
use crate::error::{Error, Kind};
use crate::json::Json;
use crate::session::Ask;
use crate::state::{lock, tell, tell_again, Locked, State, Undo};
use crate::sys::{self, now};
use std::io::ErrorKind;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Without a word a wait without end asks whether the sidecar is there.
const PING_AFTER: f64 = 5.0;
/// Where this process stood still for longer than a look takes, the sidecar had no room to write all: it has so long more for the rest.
const MORE: f64 = 1.0;
/// Pieces: more than a socket has room for.
const MOST_READ: usize = 16;

/// What was read.
#[derive(Default)]
pub(crate) struct Received {
    chunk: Vec<u8>,
    /// Half a line.
    rest: Vec<u8>,
}

impl Session {
    pub(super) fn read(self: Arc<Session>) {
        let end = End(&self); // also where this panics
        let why = self.read_on();
        self.over(Error::new(Kind::SidecarGone, why));
        drop(end);
        while !tell_again() {
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Reads until the connection ends, and says why it has.
    fn read_on(self: &Arc<Self>) -> String {
        let (mut looked, mut judged) = (now(), now());
        loop {
            // What had come by now is read before anything is found to be over by now: it is no silence of the sidecar that this thread
            // had no turn.
            let now = now();
            if now > looked + MAX_LOOK + MORE {
                judged = now + MORE;
            }
            looked = now;
            match self.take_in() {
                Ok(true) => {}
                Ok(false) => sys::wait_for_news(&self.stream, self.tick(now, judged)),
                Err(why) => break why,
            }
        }
    }

    /// Carries out what has come, whoever else reads, and does not wait. Whoever is about to find a hold over by the clock calls it
    /// first: where this process stood still, the sidecar has renewed the lease meanwhile.
    pub(super) fn catch_up(self: &Arc<Self>) {
        for _ in 0..MOST_READ {
            match self.take_in() {
                Ok(true) => {}
                Ok(false) => break,
                Err(why) => return self.over(Error::new(Kind::SidecarGone, why)),
            }
        }
    }

    /// Carries out a piece of what has come. Whether there was any; or why the connection is over.
    fn take_in(self: &Arc<Self>) -> Result<bool, String> {
        let mut undos = Vec::new();
        let taken = self.take_lines(&mut undos);
        drop(self.state()); // and does what is to be done later
        undos.into_iter().for_each(|undo| self.undo(undo));
        taken
    }

    fn take_lines(self: &Arc<Self>, undos: &mut Vec<Undo>) -> Result<bool, String> {
        let mut received = lock(&self.receiving);
        let Received { chunk, rest } = &mut *received;
        chunk.resize(LONGEST, 0);
        match sys::receive_now(&self.stream, chunk) {
            Ok(0) => return Err(format!("the connection to the sidecar at {} ended", self.path)),
            Ok(n) => rest.extend_from_slice(&chunk[..n]),
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(e) if e.kind() == ErrorKind::Interrupted => return Ok(true),
            Err(e) => return Err(format!("the connection to the sidecar at {} ended: {e}", self.path)),
        }
        let Some(end) = rest.iter().rposition(|b| *b == b'\n') else { return Ok(true) };
        let lines: Vec<u8> = rest.drain(..=end).collect();
        for line in String::from_utf8_lossy(&lines).lines() {
            let Some(m) = Json::parse(line) else {
                return Err(format!("what answers at {} is no sidecar, or an older one than this client", self.path));
            };
            undos.extend(self.line(&m));
        }
        Ok(true)
    }

    /// Notices the ends that had come at a moment, of holds and of waits, but no silence before another. In so many seconds it must do so again.
    fn tick(self: &Arc<Self>, now: f64, judged: f64) -> f64 {
        tell_again();
        let (mut late, mut over, mut ping) = (Vec::new(), Vec::new(), false);
        let mut nearest = now + MAX_LOOK;
        {
            let mut s = self.state();
            self.flush(&mut s);
            for hold in s.holds.values().cloned().collect::<Vec<_>>() {
                let end = s.silent_at(&hold);
                if end <= now {
                    s.expire(&hold, end, now);
                }
                nearest = nearest.min(end.max(now));
            }
            let quiet = now >= s.heard + PING_AFTER;
            let unanswered = s.ping.is_some_and(|id| s.calls.contains_key(&id));
            for (id, call) in s.calls.iter().filter(|(_, c)| c.outcome.is_none() && !c.abandoned && !c.late) {
                if let Some(end) = s.queue_end(*id).filter(|end| end.is_finite()) {
                    if end <= now {
                        over.push(*id);
                    }
                    nearest = nearest.min(end);
                }
                match call.deadline {
                    Some(deadline) if deadline.max(judged) <= now => late.push(*id),
                    Some(deadline) => nearest = nearest.min(deadline.max(judged)),
                    None if quiet && unanswered => late.push(*id),
                    None => ping |= quiet,
                }
            }
            over.into_iter().for_each(|id| s.end_wait(id));
            if quiet {
                s.heard = now; // from here it has as long again
            }
        }
        if ping {
            let id = self.post(Ask { kind: "keepAlive", ..Ask::default() }).unwrap_or(0);
            self.state().ping = Some(id);
            self.forget(id);
        }
        for id in late {
            self.give_up(id);
        }
        self.changed.notify_all();
        (nearest - now).clamp(0.001, MAX_LOOK)
    }

    /// The sidecar does not answer: nobody need wait any longer.
    fn give_up(self: &Arc<Self>, id: u64) {
        let acquires = {
            let mut s = self.state();
            let queued = s.drop_queued(id);
            let full = full(s.acquires.most());
            let State { calls, later, .. } = &mut *s;
            let Some(call) = calls.get_mut(&id) else { return };
            if queued {
                call.finish(Err(if call.deadline.is_some() { full } else { self.silent() }), later);
                return;
            }
            call.late = true;
            call.finish(Err(self.silent()), later);
            let (acquires, detaches) = (call.asked.is_some(), call.left.as_ref().and(call.about.clone()));
            if let Some(hold) = detaches {
                s.lose_detached(&hold, "nobody waited for it to be detached");
            }
            acquires
        };
        if acquires {
            self.cancel(id);
        }
    }

    /// Gives what is to be sent for it, when nobody reads.
    fn line(self: &Arc<Self>, m: &Json) -> Option<Undo> {
        let id = m.get("requestId").text();
        let mut undo = None;
        let mut draining = None;
        {
            let mut s = Locked::keeping(&self.state);
            if s.error.is_some() {
                return None; // what it says of the end concerns nobody
            }
            s.heard = now();
            if id.is_empty() {
                draining = s.event(m.get("event"));
                if m.get("error").is_some() {
                    self.finish(&mut s, Error::explain(m.get("error")), "SIDECAR_GONE");
                    // its last word
                }
            } else if let Ok(id) = id.parse() {
                undo = s.answered(id, m);
                self.flush(&mut s); // what has queued here
            }
        }
        self.changed.notify_all();
        if let (Some(seconds), Some(then)) = (draining, self.on_draining.clone()) {
            tell(Box::new(move || then(Duration::from_secs_f64(seconds))));
        }
        undo
    }
}
