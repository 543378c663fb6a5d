//! What a session knows: its calls and holds, and what a line of the sidecar changes of them. There is
//! no input or output here.

use crate::acquires::{Acquires, Asked};
use crate::error::{Error, Kind};
use crate::json::Json;
use crate::sys::now;
use std::collections::{HashMap, VecDeque};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::Waker;
use std::thread;
use std::time::Duration;

/// For the sidecar to say that a max_hold is over.
const MAX_SLACK: f64 = 0.25;

pub(crate) type Listener = Box<dyn FnOnce(Error) + Send>;

/// What came of a request: the answer, and what an acquire has got.
pub(crate) type Outcome = Result<(Json, Option<Arc<Hold>>), Error>;

/// What undoes an answer that nobody wants any more: the kind of the request, its field, and what that says.
pub(crate) type Undo = (&'static str, &'static str, String);

/// A request as it is sent.
pub(crate) fn line(id: u64, kind: &str, body: Vec<(String, Json)>) -> String {
    let mut line = String::new();
    Json::Fields(vec![("requestId".into(), Json::Text(id.to_string())), (kind.into(), Json::Fields(body))]).write(&mut line);
    line.push('\n');
    line
}

pub(crate) struct Call {
    /// Of an acquire.
    pub asked: Option<Asked>,
    /// What it gets and nobody wants is not released: it is for the next one who has the handle.
    pub attaches: bool,
    pub sent: f64,
    /// How many bytes were to be sent before it; the largest number: it queues here.
    pub start: u64,
    pub about: Option<Arc<Hold>>,
    /// Of a detach: is set when it is carried out, for who had entered the hold.
    pub left: Option<Arc<AtomicBool>>,
    pub max_hold: Option<f64>,
    pub deadline: Option<f64>,
    /// Nobody waits for it any more.
    pub abandoned: bool,
    /// Who waits for it is told that it was not answered in time.
    pub late: bool,
    pub outcome: Option<Outcome>,
    pub waker: Option<Waker>,
}

/// A hold as its session knows it. Each acquire that entered it has a `Held`.
pub(crate) struct Hold {
    pub id: String,
    pub resource: String,
    pub grant: Json,
    counted: f64,
    state: Mutex<HoldState>,
}

pub(crate) struct HoldState {
    pub mode: String,
    pub count: u32,
    pub until: f64,
    /// Its end by max_hold, or by its handle where it is attached.
    pub limit: f64,
    /// Released or detached: how those who had entered it have left.
    pub left_by: &'static str,
    pub problem: Option<Error>,
    pub listeners: Vec<Listener>,
    /// Of the futures that wait for the loss.
    pub wakers: HashMap<u64, Waker>,
    pub last_waker: u64,
}

impl HoldState {
    /// When it is over if nothing is heard any more.
    fn end(&self) -> f64 {
        self.until.min(self.limit)
    }
}

impl Hold {
    fn new(grant: &Json) -> Hold {
        let mut resource = grant.get("resource").text().to_string();
        if resource.is_empty() {
            let names: Vec<&str> = grant.get("parts").items().iter().map(|p| p.get("resource").text()).collect();
            resource = names.join(", ");
        }
        Hold {
            id: grant.get("lockId").text().into(),
            resource,
            grant: grant.clone(),
            counted: grant.get("countedAt").seconds(),
            state: Mutex::new(HoldState {
                mode: String::new(),
                count: 0,
                until: f64::NEG_INFINITY,
                limit: f64::INFINITY,
                left_by: "released",
                problem: None,
                listeners: Vec::new(),
                wakers: HashMap::new(),
                last_waker: 0,
            }),
        }
    }

    pub fn state(&self) -> MutexGuard<'_, HoldState> {
        lock(&self.state)
    }

    pub fn mode(&self) -> String {
        self.state().mode.clone()
    }

    pub fn count(&self) -> u32 {
        self.state().count
    }

    pub fn end(&self) -> f64 {
        self.state().end()
    }

    pub fn lose(&self, reason: &str, message: &str, later: &mut Later) {
        let mut s = self.state();
        if s.problem.is_some() {
            return;
        }
        let problem = Error::lost(&self.resource, &self.id, reason, message);
        s.problem = Some(problem.clone());
        later.wake.extend(s.wakers.drain().map(|(_, waker)| waker));
        later.tell.extend(s.listeners.drain(..).map(|listener| (listener, problem.clone())));
    }
}

pub(crate) type Work = Box<dyn FnOnce() + Send>;

/// What the app is to be told, and no thread could be started for it.
static UNTOLD: Mutex<Vec<Work>> = Mutex::new(Vec::new());

/// Tells the app something in a thread of its own, never where the news are read. Where none can be started now, a thread
/// that reads tries again.
pub(crate) fn tell(work: Work) {
    lock(&UNTOLD).extend(start(thread::Builder::new(), work));
}

/// Whether all is told.
pub(crate) fn tell_again() -> bool {
    let untold = std::mem::take(&mut *lock(&UNTOLD));
    let left: Vec<Work> = untold.into_iter().filter_map(|work| start(thread::Builder::new(), work)).collect();
    let all = left.is_empty();
    lock(&UNTOLD).extend(left);
    all
}

/// Does it in a thread, or gives it back where that cannot be started.
pub(crate) fn start(thread: thread::Builder, work: Work) -> Option<Work> {
    let here = Arc::new(Mutex::new(Some(work)));
    let there = here.clone();
    let work = move || {
        let work = lock(&there).take();
        work.into_iter().for_each(|work| work());
    };
    if thread.spawn(work).is_ok() {
        return None;
    }
    let left = lock(&here).take();
    left
}

/// What may run code of the app, and so waits until no mutex is held: a waker may poll its task at once, or drop it.
#[derive(Default)]
pub(crate) struct Later {
    pub wake: Vec<Waker>,
    pub forget: Vec<Waker>,
    pub tell: Vec<(Listener, Error)>,
}

impl Later {
    fn run(self) {
        self.wake.into_iter().for_each(Waker::wake);
        for (listener, problem) in self.tell {
            tell(Box::new(move || listener(problem)));
        }
    }
}

/// The state, while its mutex is held. What is to be done later is done when it no longer is.
pub(crate) struct Locked<'a> {
    guard: Option<MutexGuard<'a, State>>,
    keeps: bool,
}

impl<'a> Locked<'a> {
    pub fn new(state: &'a Mutex<State>) -> Locked<'a> {
        Locked { guard: Some(lock(state)), keeps: false }
    }

    /// For who has another mutex, and leaves what is to be done later to the next one who has the state.
    pub fn keeping(state: &'a Mutex<State>) -> Locked<'a> {
        Locked { guard: Some(lock(state)), keeps: true }
    }

    /// Waits for a change, for so long at most.
    pub fn wait(mut self, changed: &Condvar, limit: Duration) -> Locked<'a> {
        let guard = self.guard.take().expect("it is held");
        Locked { guard: Some(changed.wait_timeout(guard, limit).unwrap_or_else(|poisoned| poisoned.into_inner()).0), keeps: false }
    }
}

impl Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        self.guard.as_ref().expect("it is held")
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        self.guard.as_mut().expect("it is held")
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        if self.keeps {
            return;
        }
        if let Some(mut state) = self.guard.take() {
            let later = std::mem::take(&mut state.later);
            drop(state);
            later.run();
        }
    }
}

/// No code of the app runs under these mutexes: a panic elsewhere leaves them well.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// So many losses are kept for grants that come after them.
const MOST_EARLY: usize = 10_000;

/// Losses by the ids of their locks.
#[derive(Default)]
pub(crate) struct Early {
    losses: HashMap<String, Json>,
    /// Of their ids: the oldest first.
    order: VecDeque<String>,
}

impl Early {
    fn remember(&mut self, lost: &Json) {
        let id = lost.get("lockId").text();
        if self.losses.insert(id.into(), lost.clone()).is_none() {
            self.order.push_back(id.into());
        }
        if self.losses.len() > MOST_EARLY {
            self.order.pop_front().map(|oldest| self.losses.remove(&oldest));
        }
    }

    pub fn clear(&mut self) {
        self.losses.clear();
        self.order.clear();
    }
}

pub(crate) struct State {
    pub error: Option<Error>,
    pub calls: HashMap<u64, Call>,
    pub holds: HashMap<String, Arc<Hold>>,
    /// Losses that came before their grants; only while an acquire is under way.
    pub early: Early,
    pub acquires: Acquires,
    pub last_id: u64,
    /// Of the clocks: ours less the sidecar's, never too large.
    pub difference: f64,
    /// Of the lease: when it was counted on the sidecar's clock, its end on ours.
    pub news: (f64, f64),
    pub slack: f64,
    pub jeopardy: bool,
    pub draining: bool,
    pub heard: f64,
    pub ping: Option<u64>,
    /// The thread that reads has ended, and the sidecar has released all.
    pub ended: bool,
    /// Not sent yet.
    pub out: Vec<u8>,
    /// How many bytes were sent.
    pub written: u64,
    /// Acquires of which nothing was sent before the session ended. Another session will do.
    pub unsent: HashMap<u64, Asked>,
    /// A thread waits for room to send that.
    pub writer: bool,
    pub later: Later,
}

impl Call {
    pub fn finish(&mut self, outcome: Outcome, later: &mut Later) {
        self.outcome = Some(outcome);
        later.wake.extend(self.waker.take());
    }
}

/// What ends a lock that was detached, by the answer that has its handle.
pub(crate) fn release_handle(answer: &Json) -> Undo {
    ("releaseHandle", "handle", answer.get("detached").get("handle").text().into())
}

/// What came of it; None: it is not answered yet.
pub(crate) fn take(s: &mut State, id: u64) -> Option<Outcome> {
    let call = s.calls.get_mut(&id)?;
    let outcome = call.outcome.take()?;
    if !call.late {
        s.calls.remove(&id);
    }
    Some(outcome)
}

impl State {
    /// Carries out an answer. Where nobody wants it any more: what undoes it.
    pub fn answered(&mut self, id: u64, m: &Json) -> Option<Undo> {
        let mut call = self.calls.remove(&id)?;
        let grant = ["opened", "granted", "downgraded", "extended"].into_iter().map(|kind| m.get(kind)).find(|g| g.is_some());
        if let Some(grant) = grant {
            self.difference = self.difference.max(call.sent - grant.get("countedAt").seconds());
        }
        let wanted = !call.abandoned && !call.late;
        let mut undo = None;
        let mut outcome = Ok((m.clone(), None));
        if m.get("error").is_some() {
            let error = Error::explain(m.get("error"));
            if let (true, Some(asked)) = (wanted && self.too_many(&error), &call.asked) {
                let most = error.metadata("max").and_then(|max| max.parse().ok());
                self.acquires.refused(id, &asked.wanted, most);
                call.start = u64::MAX;
                self.calls.insert(id, call);
                return None; // one that is answered makes room
            }
            outcome = Err(self.refused(&call, error));
        } else if m.get("opened").is_some() {
            self.slack = MAX_SLACK.min(m.get("opened").get("leaseMargin").seconds() / 2.0);
        } else if m.get("granted").is_some() {
            if wanted {
                outcome = Ok((m.clone(), Some(self.granted(m.get("granted"), call.max_hold))));
            } else if !call.attaches {
                undo = Some(("release", "lockId", m.get("granted").get("lockId").text().into()));
            }
        } else if let (true, Some(hold), Some(left)) = (m.get("detached").is_some(), &call.about, &call.left) {
            hold.state().left_by = "detached";
            if !left.swap(true, Ordering::SeqCst) {
                self.leave(hold);
            }
            if !wanted {
                undo = Some(release_handle(m));
            }
        } else if let (Some(grant), Some(hold)) = (grant, &call.about) {
            let mut h = hold.state();
            h.mode = grant.get("mode").text().into();
            if let (true, Some(max_hold)) = (m.get("extended").is_some(), call.max_hold) {
                h.limit = self.moment(grant, max_hold).min(self.by_handle(grant));
                h.until = h.until.max(self.moment(grant, grant.get("validFor").seconds()));
            }
        }
        if let Some(asked) = &call.asked {
            self.acquires.answered(&asked.wanted);
            if self.acquires.size() == 0 {
                self.early.clear();
            }
            self.send_queued();
        }
        if wanted {
            call.finish(outcome, &mut self.later);
            self.calls.insert(id, call);
        } else if call.late && call.outcome.is_some() {
            call.late = false; // the one who waits has yet to learn that it was too late
            self.calls.insert(id, call);
        }
        undo
    }

    /// One who had entered a hold relies on it no more.
    pub fn leave(&mut self, hold: &Hold) {
        let mut h = hold.state();
        h.count = h.count.saturating_sub(1);
        if h.count == 0 {
            self.holds.remove(&hold.id);
        }
    }

    /// Whether it is detached, or is still held, nobody knows.
    pub fn lose_detached(&mut self, hold: &Hold, message: &str) {
        self.holds.remove(&hold.id);
        hold.lose("UNKNOWN", message, &mut self.later);
    }

    /// When the time of its handle is over, where it is attached.
    fn by_handle(&self, grant: &Json) -> f64 {
        let left = grant.get("endsIn");
        if left.is_some() {
            self.moment(grant, left.seconds())
        } else {
            f64::INFINITY
        }
    }

    fn granted(&mut self, grant: &Json, max_hold: Option<f64>) -> Arc<Hold> {
        let id = grant.get("lockId").text().to_string();
        let hold = self.holds.entry(id).or_insert_with(|| Arc::new(Hold::new(grant))).clone();
        {
            let mut h = hold.state();
            h.count += 1;
            h.mode = grant.get("mode").text().into();
            h.until = h.until.max(self.moment(grant, grant.get("validFor").seconds()));
            if let Some(max_hold) = max_hold {
                h.limit = h.limit.min(self.moment(grant, max_hold));
            }
            h.limit = h.limit.min(self.by_handle(grant));
        }
        self.prolong(&hold); // news may overtake the grant
        if let Some(early) = self.early.losses.get(&hold.id).cloned() {
            self.lost(&hold, &early);
        }
        hold
    }

    /// What a refusal says about a hold; the error to give.
    fn refused(&mut self, call: &Call, error: Error) -> Error {
        let Some(hold) = &call.about else { return error };
        if call.left.is_some() && error.kind() == Kind::StoreUnavailable {
            self.lose_detached(hold, "the store did not answer when it was to be detached");
            return error;
        }
        let over = error.kind() == Kind::LockLost || (error.kind() == Kind::NotHolder && hold.count() > 0);
        if over {
            self.holds.remove(&hold.id); // sooner than its event
            hold.lose(error.lost_reason().unwrap_or("UNKNOWN"), &error.to_string(), &mut self.later);
        }
        let problem = hold.state().problem.clone();
        problem.unwrap_or(error)
    }

    /// The seconds that are left, where it is that the sidecar stops.
    pub fn event(&mut self, event: &Json) -> Option<f64> {
        let (lease, lost, draining) = (event.get("lease"), event.get("lost"), event.get("draining"));
        if lease.is_some() {
            self.news = (lease.get("countedAt").seconds(), self.moment(lease, lease.get("validFor").seconds()));
            for hold in self.holds.values() {
                self.prolong(hold);
            }
            self.jeopardy = *lease.get("jeopardy") == Json::Bool(true);
        } else if lost.is_some() {
            let id = lost.get("lockId").text();
            if self.acquires.size() > 0 {
                self.early.remember(lost); // also of a known hold: who re-enters it may have a grant on its way
            }
            if let Some(hold) = self.holds.get(id).cloned() {
                self.lost(&hold, lost);
            }
        } else if draining.is_some() && !self.draining {
            self.draining = true;
            return Some((self.moment(draining, draining.get("remaining").seconds()) - now()).max(0.0));
        }
        None
    }

    fn lost(&mut self, hold: &Hold, event: &Json) {
        self.holds.remove(&hold.id);
        hold.lose(event.get("reason").text(), event.get("message").text(), &mut self.later);
    }

    /// News are for what was held when they were counted, and was not over by then.
    fn prolong(&self, hold: &Hold) {
        let (counted, until) = self.news;
        let mut h = hold.state();
        if counted >= hold.counted && counted + self.difference < h.until {
            h.until = h.until.max(until);
        }
    }

    /// On our clock, when so many seconds are over that were counted at `countedAt`.
    fn moment(&self, m: &Json, seconds: f64) -> f64 {
        m.get("countedAt").seconds() + self.difference + seconds
    }

    /// When the sidecar's silence ends a hold: at its end, or a little later where that is by max_hold. The
    /// sidecar keeps others out meanwhile and says so, which is better news than its silence.
    pub fn silent_at(&self, hold: &Hold) -> f64 {
        let h = hold.state();
        let end = h.end();
        if end + self.slack >= h.limit {
            end + self.slack
        } else {
            end
        }
    }

    /// What had come by that moment is read.
    pub fn expire(&mut self, hold: &Hold, end: f64, now: f64) {
        if end > now || self.holds.remove(&hold.id).is_none() {
            return;
        }
        let limit = hold.state().limit;
        if now >= limit {
            hold.lose("MAX_HOLD", "it was held longer than its max_hold", &mut self.later);
        } else {
            hold.lose("SIDECAR_SILENT", "the sidecar was not heard of in time", &mut self.later);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_losses_are_kept_for_their_grants() {
        let mut early = Early::default();
        let lost = |i: usize| Json::Fields(vec![("lockId".into(), Json::Text(i.to_string()))]);
        (0..=MOST_EARLY).for_each(|i| early.remember(&lost(i)));
        early.remember(&lost(MOST_EARLY)); // told again
        let kept = |i: usize| early.losses.contains_key(&i.to_string());
        assert!(!kept(0) && kept(1) && kept(MOST_EARLY));
        assert_eq!(early.losses.len(), MOST_EARLY);
    }
}
