//! One app session: a connection with lines of JSON. When it ends, at either end, all its locks
//! are lost. What a line says is carried out when it is read, in the order of the lines.

mod reading;

use crate::acquires::{Acquires, Asked};
use crate::error::{Error, Kind};
use crate::json::Json;
use crate::state::{line, lock, release_handle, take, tell, Call, Early, Hold, Later, Listener, Locked, Outcome, State, Undo};
use crate::sys::{self, now};
use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::Shutdown;
use std::ops::Deref;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

/// For what the sidecar answers at once, and beyond a wait.
pub(crate) const ANSWER_LIMIT: f64 = 5.0;
/// Timers stand still while the machine is suspended; the clock of a hold does not.
const MAX_LOOK: f64 = 1.0;
/// The sidecar ends a connection at a longer line.
pub(crate) const LONGEST: usize = 65536;
/// Bytes: from there on a sidecar that does not read is asked for nothing more.
const MOST_UNSENT: usize = 1 << 20;

pub(crate) type OnDraining = Arc<dyn Fn(Duration) + Send + Sync>;

/// A request.
#[derive(Clone, Default)]
pub(crate) struct Ask {
    pub kind: &'static str,
    pub body: Vec<(String, Json)>,
    pub about: Option<Arc<Hold>>,
    /// Of a detach: is set when it is carried out.
    pub left: Option<Arc<AtomicBool>>,
    pub max_hold: Option<f64>,
    /// In so many seconds there must be an answer; None: whatever it takes.
    pub limit: Option<f64>,
}

impl Ask {
    pub fn of(kind: &'static str, hold: &Arc<Hold>) -> Ask {
        let body = vec![("lockId".into(), Json::Text(hold.id.clone()))];
        Ask { kind, body, about: Some(hold.clone()), limit: Some(ANSWER_LIMIT), ..Ask::default() }
    }

    pub fn with(mut self, name: &str, value: impl Into<String>) -> Ask {
        self.body.push((name.into(), Json::Text(value.into())));
        self
    }
}

/// The session, for those who use it. The thread that reads is none of them: when they all have gone, it goes.
pub(crate) struct Owned(Arc<Session>);

impl Deref for Owned {
    type Target = Arc<Session>;

    fn deref(&self) -> &Arc<Session> {
        &self.0
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.0.over(Error::new(Kind::SessionClosed, "nobody has the client any more"));
    }
}

pub(crate) struct Session {
    path: String,
    stream: UnixStream,
    /// Taken before the state, by who reads what has come; never while it waits.
    receiving: Mutex<reading::Received>,
    state: Mutex<State>,
    changed: Condvar,
    on_draining: Option<OnDraining>,
}

impl Session {
    pub fn open(path: &Path, body: Vec<(String, Json)>, on_draining: Option<OnDraining>) -> Result<Arc<Owned>, Error> {
        let stream = sys::connect(path)?;
        let state = State {
            error: None,
            calls: HashMap::new(),
            holds: HashMap::new(),
            early: Early::default(),
            acquires: Acquires::new(),
            last_id: 0,
            difference: f64::NEG_INFINITY,
            news: (f64::NEG_INFINITY, f64::NEG_INFINITY),
            slack: 0.0,
            jeopardy: false,
            draining: false,
            heard: now(),
            ping: None,
            ended: false,
            out: Vec::new(),
            written: 0,
            unsent: HashMap::new(),
            writer: false,
            later: Later::default(),
        };
        let (path, receiving) = (path.display().to_string(), Mutex::default());
        let session = Arc::new(Session { path, stream, receiving, state: Mutex::new(state), changed: Condvar::new(), on_draining });
        let reader = session.clone();
        thread::Builder::new()
            .name("locksidecar".into())
            .spawn(move || reader.read())
            .map_err(|e| Error::new(Kind::Internal, format!("start the thread that reads: {e}")))?;
        let session = Owned(session);
        session.ask(Ask { kind: "open", body, limit: Some(ANSWER_LIMIT), ..Ask::default() })?;
        Ok(Arc::new(session))
    }

    fn state(&self) -> Locked<'_> {
        Locked::new(&self.state)
    }

    pub fn error(&self) -> Option<Error> {
        self.state().error.clone()
    }

    pub fn draining(&self) -> bool {
        let s = self.state();
        s.draining && s.error.is_none()
    }

    pub fn jeopardy(&self) -> bool {
        self.state().jeopardy
    }

    // Requests.

    /// Sends it, or lets it queue here, and gives its id. It does not wait, also where the sidecar does not read.
    pub fn post(self: &Arc<Self>, ask: Ask) -> Result<u64, Error> {
        let mut s = self.state();
        if let Some(e) = &s.error {
            return Err(e.clone());
        }
        let acquires = ask.kind == "acquire";
        let attaches = acquires && ask.body.iter().any(|(name, _)| name == "handle");
        if acquires && s.out.len() > MOST_UNSENT {
            return Err(self.silent());
        }
        let id = s.last_id + 1;
        let asked = acquires.then(|| Asked::new(ask.body.clone(), ask.max_hold));
        let line = line(id, ask.kind, ask.body);
        if line.len() > LONGEST {
            return Err(Error::new(Kind::InvalidRequest, format!("the request is longer than {LONGEST} bytes")));
        }
        s.last_id = id;
        let sent = now();
        let deadline = ask.limit.map(|seconds| sent + seconds);
        let queues = asked.as_ref().is_some_and(|asked| !s.acquires.enter(id, &asked.wanted));
        let start = if queues { u64::MAX } else { s.written + s.out.len() as u64 };
        let (about, left, max_hold) = (ask.about, ask.left, ask.max_hold);
        let (abandoned, late, outcome, waker) = (false, false, None, None);
        s.calls.insert(id, Call { asked, attaches, sent, start, about, left, max_hold, deadline, abandoned, late, outcome, waker });
        if queues {
            return Ok(id);
        }
        s.out.extend_from_slice(line.as_bytes());
        self.flush(&mut s);
        match s.error.clone() {
            Some(e) if acquires => {
                s.calls.remove(&id);
                Err(e) // it can go to another session
            }
            _ => Ok(id),
        }
    }

    /// Sends what there is room for; a thread waits for more.
    fn flush(self: &Arc<Self>, s: &mut State) {
        if s.writer || self.write(s) {
            return;
        }
        let session = self.clone();
        let wait = move || loop {
            sys::wait_for_room(&session.stream);
            let mut s = session.state();
            s.writer = !session.write(&mut s);
            if !s.writer {
                break;
            }
        };
        // Where there is no thread to be had, the one that reads looks again.
        s.writer = thread::Builder::new().name("locksidecar".into()).spawn(wait).is_ok();
    }

    /// Sends what there is room for. Whether nothing is left to be sent.
    fn write(&self, s: &mut State) -> bool {
        while !s.out.is_empty() {
            match sys::send_now(&self.stream, &s.out) {
                Ok(n) => {
                    s.out.drain(..n);
                    s.written += n as u64;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return false,
                Err(_) => {
                    s.out.clear();
                    // though nobody has read that yet
                    self.finish(s, Error::new(Kind::SidecarGone, format!("the connection to the sidecar at {} ended", self.path)), "SIDECAR_GONE");
                    let _ = self.stream.shutdown(Shutdown::Both);
                }
            }
        }
        true
    }

    fn silent(&self) -> Error {
        Error::new(Kind::SidecarSilent, format!("the sidecar at {} did not answer in time; it may be frozen", self.path))
    }

    /// Sends it, and waits for the answer.
    pub fn ask(self: &Arc<Self>, ask: Ask) -> Result<Json, Error> {
        let id = self.post(ask)?;
        self.wait(id).map(|(answer, _)| answer)
    }

    /// Waits for the answer to what was sent. The thread that reads sees to its end.
    pub fn wait(&self, id: u64) -> Outcome {
        let bell = Arc::new(Bell::default()); // of its own: an answer need not wake all who wait
        let waker = Waker::from(bell.clone());
        loop {
            if let Poll::Ready(outcome) = self.poll(id, &mut Context::from_waker(&waker)) {
                return outcome;
            }
            let end = self.state().queue_end(id);
            bell.wait(Duration::from_secs_f64(end.map_or(3600.0, |end| end - now()).clamp(0.001, 3600.0)));
        }
    }

    pub fn poll(&self, id: u64, cx: &mut Context<'_>) -> Poll<Outcome> {
        let waker = cx.waker().clone();
        let mut s = self.state();
        s.end_wait(id);
        if let Some(outcome) = take(&mut s, id) {
            return Poll::Ready(outcome);
        }
        let before = s.calls.get_mut(&id).and_then(|call| call.waker.replace(waker));
        s.later.forget.extend(before);
        Poll::Pending
    }

    /// What of an acquire was not sent before the session ended, for another session; once.
    pub fn unsent(&self, id: u64) -> Option<Ask> {
        self.state().unsent.remove(&id).map(|asked| asked.again())
    }

    /// Whether there is something that `unsent` would give.
    pub fn is_unsent(&self, id: u64) -> bool {
        self.state().unsent.contains_key(&id)
    }

    /// Whether the answer is there.
    pub fn answered(&self, id: u64) -> bool {
        self.state().calls.get(&id).map_or(true, |call| call.outcome.is_some())
    }

    /// Sees to it that nobody keeps what nobody waits for.
    pub fn abandon(self: &Arc<Self>, id: u64) {
        let dropped = {
            let mut s = self.state();
            s.drop_queued(id).then(|| s.calls.remove(&id))
        };
        if dropped.is_some() {
            return; // and its waker is dropped where no mutex is held
        }
        let attaches = self.state().calls.get(&id).is_some_and(|call| call.attaches);
        match self.forget(id) {
            None => self.cancel(id),
            Some(Ok((_, Some(hold)))) if attaches => self.leave(&hold),
            Some(Ok((_, Some(hold)))) => self.drop_hold(&hold),
            Some(_) => {}
        }
    }

    /// Nobody waits for the answer. A grant that is still to come is released; what came of it before.
    pub fn forget(&self, id: u64) -> Option<Outcome> {
        let mut s = self.state();
        let outcome = take(&mut s, id);
        let waker = s.calls.get_mut(&id).and_then(|call| {
            call.abandoned = true;
            call.waker.take()
        });
        s.later.forget.extend(waker);
        outcome
    }

    fn cancel(self: &Arc<Self>, id: u64) {
        let body = vec![("requestId".into(), Json::Text(id.to_string()))];
        self.send(Ask { kind: "cancel", body, ..Ask::default() });
    }

    /// Sends what nobody waits for. Where the session has ended, its holds have, too.
    fn send(self: &Arc<Self>, ask: Ask) {
        if let Ok(id) = self.post(ask) {
            self.forget(id);
        }
    }

    /// Leaves a hold and sends the release.
    pub fn drop_hold(self: &Arc<Self>, hold: &Arc<Hold>) {
        self.leave(hold);
        self.send(Ask::of("release", hold));
    }

    /// The app has left what it has entered: the sidecar carries that out, be it late. The request,
    /// whose answer has the counts that are left.
    pub fn release(self: &Arc<Self>, hold: &Arc<Hold>) -> Result<u64, Error> {
        let lost = self.look(hold, false);
        self.leave(hold);
        match lost {
            None => self.post(Ask::of("release", hold)),
            Some(problem) => {
                self.send(Ask::of("release", hold)); // the sidecar may be what is broken: it reads this when it is well again
                Err(problem)
            }
        }
    }

    pub fn leave(&self, hold: &Hold) {
        self.state().leave(hold);
    }

    /// Nobody gets the handle of what was to be detached: it is released, now or when it comes.
    pub fn keep_no_handle(self: &Arc<Self>, id: u64, hold: &Hold) {
        match self.forget(id) {
            Some(Ok((answer, _))) => self.undo(release_handle(&answer)),
            Some(Err(_)) => {} // it is not detached, or is lost
            None => {
                self.state().lose_detached(hold, "nobody waited for it to be detached");
                self.changed.notify_all();
            }
        }
    }

    fn undo(self: &Arc<Self>, (kind, field, value): Undo) {
        self.send(Ask { kind, body: vec![(field.into(), Json::Text(value))], ..Ask::default() });
    }

    /// Ends the session, and waits until the sidecar has released all.
    pub fn close(&self) {
        let closed = Error::new(Kind::SessionClosed, "this process has closed the session");
        if !self.finish(&mut self.state(), closed, "SESSION_CLOSED") {
            return;
        }
        let _ = self.stream.shutdown(Shutdown::Write);
        let end = now() + ANSWER_LIMIT;
        let mut s = self.state();
        while !s.ended && now() < end {
            s = s.wait(&self.changed, Duration::from_millis(100));
        }
        drop(s);
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    // Holds.

    /// Why it is lost, by all that is known, which includes the clock.
    pub fn look(self: &Arc<Self>, hold: &Hold, exact: bool) -> Option<Error> {
        let mut read = f64::NEG_INFINITY;
        loop {
            let mut s = self.state();
            let end = if exact { hold.end() } else { s.silent_at(hold) };
            s.expire(hold, end, read);
            let now = now();
            if end > now || !s.holds.contains_key(&hold.id) {
                break;
            }
            drop(s);
            self.catch_up();
            read = now; // what had come by then, however late this thread goes on
        }
        self.changed.notify_all();
        hold.state().problem.clone()
    }

    /// Waits until it is lost, for so long at most.
    pub fn wait_lost(self: &Arc<Self>, hold: &Hold, limit: Duration) -> Option<Error> {
        let end = now() + limit.as_secs_f64();
        loop {
            if let Some(problem) = self.look(hold, false) {
                return Some(problem);
            }
            let left = end - now();
            if left <= 0.0 {
                return None;
            }
            let s = self.state();
            if hold.state().problem.is_none() {
                let step = Duration::from_secs_f64(left.min(MAX_LOOK));
                drop(s.wait(&self.changed, step));
            }
        }
    }

    /// The future has its number from its first poll on.
    pub fn poll_lost(self: &Arc<Self>, hold: &Hold, future: &mut Option<u64>, cx: &mut Context<'_>) -> Poll<Error> {
        if let Some(problem) = self.look(hold, false) {
            return Poll::Ready(problem);
        }
        let waker = cx.waker().clone();
        let mut h = hold.state();
        if let Some(problem) = &h.problem {
            return Poll::Ready(problem.clone());
        }
        let number = future.unwrap_or(h.last_waker + 1);
        h.last_waker = h.last_waker.max(number);
        *future = Some(number);
        let before = h.wakers.insert(number, waker);
        drop(h);
        drop(before); // code of the app
        Poll::Pending
    }

    pub fn on_lost(&self, hold: &Hold, listener: Listener) {
        let mut h = hold.state();
        let Some(problem) = h.problem.clone() else {
            h.listeners.push(listener);
            return;
        };
        drop(h);
        tell(Box::new(move || listener(problem)));
    }

    // Ends.

    /// Until what it gives is dropped.
    #[cfg(test)]
    pub fn stop_reading(&self) -> std::sync::MutexGuard<'_, impl Default> {
        lock(&self.receiving)
    }

    #[cfg(test)]
    pub fn hang_up(&self, how: Shutdown) {
        self.stream.shutdown(how).unwrap();
    }

    /// The end of the session that nobody asked for.
    fn over(&self, error: Error) {
        self.finish(&mut self.state(), error, "SIDECAR_GONE");
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Ends it once: later reasons do not count.
    fn finish(&self, s: &mut State, error: Error, lost_reason: &str) -> bool {
        if s.error.is_some() {
            return false;
        }
        if error.kind() == Kind::SidecarGone {
            s.keep_unsent();
        }
        for (_, hold) in std::mem::take(&mut s.holds) {
            hold.lose(lost_reason, &error.to_string(), &mut s.later);
        }
        s.calls.retain(|_, call| !(call.abandoned || call.late && call.outcome.is_none()));
        for call in s.calls.values_mut().filter(|call| call.outcome.is_none()) {
            call.late = false;
            let problem = call.about.as_ref().and_then(|hold| hold.state().problem.clone());
            call.finish(Err(problem.unwrap_or_else(|| error.clone())), &mut s.later);
        }
        s.early.clear();
        s.acquires.clear();
        s.error = Some(error);
        self.changed.notify_all();
        true
    }
}

/// Wakes a thread.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        *lock(&self.rung) = true;
        self.changed.notify_one();
    }
}

impl Bell {
    /// Until it was rung since the last time, for so long at most.
    fn wait(&self, limit: Duration) {
        let guard = self.changed.wait_timeout_while(lock(&self.rung), limit, |rung| !*rung);
        *guard.unwrap_or_else(|poisoned| poisoned.into_inner()).0 = false;
    }
}

/// The end of the thread that reads: nobody may wait for it any more.
struct End<'a>(&'a Session);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.over(Error::new(Kind::SidecarGone, "the thread that reads has ended"));
        self.0.state().ended = true;
        self.0.changed.notify_all();
    }
}
