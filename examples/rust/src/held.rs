use crate::detached::{Detached, Detaching};
use crate::duration;
use crate::error::{Error, Kind};
use crate::json::Json;
use crate::looks::Outcome;
use crate::session::{Ask, Owned};
use crate::state::Hold;
use crate::sys::now;
use crate::Result;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// A statement for the app's own transaction, from SQL stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    /// `mysql`, `mariadb` or `postgresql`.
    pub dialect: String,
    /// Has a `?` for each of the arguments.
    pub sql: String,
    /// Its arguments.
    pub args: Vec<String>,
}

impl Guard {
    fn of(m: &Json) -> Option<Guard> {
        let args = m.get("args").items().iter().map(|a| a.text().into()).collect();
        m.is_some().then(|| Guard { dialect: m.get("dialect").text().into(), sql: m.get("sql").text().into(), args })
    }
}

/// One of several that were taken at once.
#[derive(Clone, Debug)]
pub struct Part {
    /// What is locked.
    pub resource: String,
    /// Its own fencing token.
    pub fence: u64,
    /// Its own guard.
    pub guard: Option<Guard>,
}

/// A lock that is held. Dropped without a release, it is released, and nobody learns of a loss.
///
/// It is good until it is lost: look at [`check`](Held::check) before each write, and send the
/// [`fence`](Held::fence) with it.
pub struct Held {
    session: Arc<Owned>,
    hold: Arc<Hold>,
    released: Arc<AtomicBool>,
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").field("resource", &self.resource()).field("id", &self.id()).finish_non_exhaustive()
    }
}

impl Held {
    pub(crate) fn new(session: Arc<Owned>, hold: Arc<Hold>) -> Held {
        Held { session, hold, released: Arc::default() }
    }

    /// Names the hold, as lists do.
    pub fn id(&self) -> &str {
        &self.hold.id
    }

    /// What is locked; of several, all names.
    pub fn resource(&self) -> &str {
        &self.hold.resource
    }

    /// `EXCLUSIVE`, `SHARED` or `PERMIT`.
    pub fn mode(&self) -> String {
        self.hold.mode()
    }

    /// The fencing token: send it with every write, and let the receiver refuse a smaller one than it has seen.
    pub fn fence(&self) -> u64 {
        number(self.hold.grant.get("fence"))
    }

    /// Of a permit: which one.
    pub fn slot(&self) -> Option<u32> {
        let slot = self.hold.grant.get("slot");
        slot.is_some().then(|| slot.number() as u32)
    }

    /// For the app's own transaction, from SQL stores.
    pub fn guard(&self) -> Option<Guard> {
        Guard::of(self.hold.grant.get("guard"))
    }

    /// Of several at once: each.
    pub fn parts(&self) -> Vec<Part> {
        let part = |p: &Json| Part { resource: p.get("resource").text().into(), fence: number(p.get("fence")), guard: Guard::of(p.get("guard")) };
        self.hold.grant.get("parts").items().iter().map(part).collect()
    }

    /// Of what is done once: which attempt this is.
    pub fn attempt(&self) -> Option<u32> {
        let attempt = self.hold.grant.get("attempt");
        attempt.is_some().then(|| attempt.number() as u32)
    }

    /// What became of the attempt before.
    pub fn previous(&self) -> Option<Outcome> {
        let p = self.hold.grant.get("previous");
        p.is_some().then(|| Outcome::of(p))
    }

    /// Records success in the app's own transaction, from SQL stores.
    pub fn outcome_guard(&self) -> Option<Guard> {
        Guard::of(self.hold.grant.get("outcomeGuard"))
    }

    /// How many acquires have entered it and not released it.
    pub fn count(&self) -> u32 {
        self.hold.count()
    }

    /// The store does not answer: begin nothing that takes long.
    pub fn jeopardy(&self) -> bool {
        self.session.jeopardy()
    }

    /// Whether this was released, or detached; of a lock that is lost, whether the loss was acknowledged so.
    pub fn is_released(&self) -> bool {
        self.released.load(Ordering::SeqCst)
    }

    /// Why it is lost.
    pub fn lost(&self) -> Option<Error> {
        self.session.look(&self.hold, false)
    }

    /// Waits for the loss, for so long at most.
    pub fn wait_lost(&self, limit: Duration) -> Option<Error> {
        self.session.wait_lost(&self.hold, limit)
    }

    /// The loss, for `select!` beside the work.
    pub fn until_lost(&self) -> UntilLost {
        UntilLost { session: self.session.clone(), hold: self.hold.clone(), number: None }
    }

    /// Calls back when it is lost, in a thread of its own.
    pub fn on_lost(&self, then: impl FnOnce(Error) + Send + 'static) {
        self.session.on_lost(&self.hold, Box::new(then));
    }

    /// For how long it may be relied on without further news; never too long.
    pub fn valid_for(&self) -> Duration {
        if self.is_released() || self.lost().is_some() {
            return Duration::ZERO;
        }
        Duration::try_from_secs_f64(self.hold.end() - now()).unwrap_or(Duration::ZERO)
    }

    /// LockLost, or NotHolder after the release. Cheap: call it before each write.
    pub fn check(&self) -> Result<()> {
        match self.session.look(&self.hold, !self.is_released()) {
            Some(problem) => Err(problem),
            None if self.is_released() => Err(self.not_held()),
            None => Ok(()),
        }
    }

    fn not_held(&self) -> Error {
        Error::new(Kind::NotHolder, format!("the lock on {:?} was {} before", self.resource(), self.hold.state().left_by))
    }

    /// Releases it, and waits for the answer: how many times it must still be released. LockLost: it was lost before.
    pub fn release(&self) -> Result<u32> {
        let released = self.begin_release()?;
        released.session.wait(released.id).map(|(answer, _)| count(&answer))
    }

    /// The same for async code. The release is sent at once, also where nobody awaits its answer.
    pub fn release_async(&self) -> Result<Released> {
        self.begin_release()
    }

    fn begin_release(&self) -> Result<Released> {
        if self.released.swap(true, Ordering::SeqCst) {
            return Err(self.lost().unwrap_or_else(|| self.not_held()));
        } // from now on nobody relies on it, whatever becomes of the call
        let id = self.session.release(&self.hold)?;
        Ok(Released { session: self.session.clone(), id })
    }

    /// EXCLUSIVE becomes SHARED without letting go.
    pub fn downgrade(&self) -> Result<()> {
        self.check()?;
        self.session.ask(Ask::of("downgrade", &self.hold)).map(drop)
    }

    /// It ends so much later than now, whatever its `max_hold` was.
    pub fn extend(&self, max_hold: Duration) -> Result<()> {
        self.check()?;
        let mut ask = Ask::of("extend", &self.hold).with("maxHold", duration(max_hold));
        ask.max_hold = Some(max_hold.as_secs_f64());
        self.session.ask(ask).map(drop)
    }

    /// Lets it live for so long (1 s to 24 h) in the store, whatever becomes of this process: waits for its handle. Here it is
    /// over then, as after a release. InvalidRequest, LimitExceeded: it stays. After any other error it is lost, and free soon.
    pub fn detach(&self, ttl: Duration) -> Result<Detached> {
        self.begin_detach(ttl)?.wait()
    }

    /// The same for async code. It is sent at once.
    pub fn detach_async(&self, ttl: Duration) -> Result<Detaching> {
        self.begin_detach(ttl)
    }

    fn begin_detach(&self, ttl: Duration) -> Result<Detaching> {
        self.check()?;
        let mut ask = Ask::of("detach", &self.hold).with("ttl", duration(ttl));
        ask.left = Some(self.released.clone());
        let sent = now();
        let id = self.session.post(ask)?;
        Ok(Detaching::new(self.session.clone(), self.hold.clone(), id, sent))
    }

    /// What is done once has succeeded: records that, and releases. The note is for people and the next attempt.
    pub fn succeeded(&self, note: &str) -> Result<()> {
        self.conclude("SUCCEEDED", note)
    }

    /// It has failed: the next attempt is told.
    pub fn failed(&self, note: &str) -> Result<()> {
        self.conclude("FAILED", note)
    }

    fn conclude(&self, outcome: &str, note: &str) -> Result<()> {
        self.session.ask(Ask::of("release", &self.hold).with("outcome", outcome).with("note", note))?;
        if !self.released.swap(true, Ordering::SeqCst) {
            self.session.leave(&self.hold);
        }
        Ok(())
    }
}

fn number(text: &Json) -> u64 {
    text.text().parse().unwrap_or(0)
}

fn count(answer: &Json) -> u32 {
    answer.get("released").get("count").number() as u32
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.is_released() {
            self.session.drop_hold(&self.hold);
        }
    }
}

/// A release that is under way: how many times the lock must still be released.
pub struct Released {
    session: Arc<Owned>,
    id: u64,
}

impl Future for Released {
    type Output = Result<u32>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.session.poll(self.id, cx).map(|outcome| outcome.map(|(answer, _)| count(&answer)))
    }
}

impl Drop for Released {
    fn drop(&mut self) {
        self.session.forget(self.id);
    }
}

/// The loss of a lock, as a future.
pub struct UntilLost {
    session: Arc<Owned>,
    hold: Arc<Hold>,
    number: Option<u64>,
}

impl Future for UntilLost {
    type Output = Error;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        this.session.poll_lost(&this.hold, &mut this.number, cx)
    }
}

impl Drop for UntilLost {
    fn drop(&mut self) {
        let waker = self.number.and_then(|number| self.hold.state().wakers.remove(&number));
        drop(waker); // code of the app, so not under the mutex
    }
}
