use crate::error::{Error, Kind};
use crate::json::Json;
use crate::session::Owned;
use crate::state::{Hold, Outcome};
use crate::sys::now;
use crate::Result;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// A lock that lives by a time of its own in the store. Whoever has its handle has it.
#[derive(Clone)]
pub struct Detached {
    handle: String,
    resource: String,
    mode: String,
    fence: u64,
    limit: Option<u32>,
    until: f64,
}

impl Detached {
    /// By the answer to a request that was sent then.
    pub(crate) fn of(answer: &Json, sent: f64) -> Result<Detached> {
        let text = |field| answer.get(field).text().to_string();
        if text("handle").is_empty() {
            return Err(Error::new(Kind::Internal, "the answer has no handle"));
        }
        let limit = answer.get("limit");
        Ok(Detached {
            handle: text("handle"),
            resource: text("resource"),
            mode: text("mode"),
            fence: text("fence").parse().unwrap_or(0),
            limit: limit.is_some().then(|| limit.number() as u32),
            until: sent + answer.get("validFor").seconds(),
        })
    }

    /// What [`Client::attach`](crate::Client::attach) takes: a password.
    pub fn handle(&self) -> &str {
        &self.handle
    }

    /// What is locked.
    pub fn resource(&self) -> &str {
        &self.resource
    }

    /// `EXCLUSIVE`, `SHARED` or `PERMIT`.
    pub fn mode(&self) -> &str {
        &self.mode
    }

    /// The fencing token, also of who attaches it.
    pub fn fence(&self) -> u64 {
        self.fence
    }

    /// Of a permit: how many there are.
    pub fn limit(&self) -> Option<u32> {
        self.limit
    }

    /// For how long the store keeps others out at least. It does not know of later extensions.
    pub fn valid_for(&self) -> Duration {
        Duration::try_from_secs_f64(self.until - now()).unwrap_or(Duration::ZERO)
    }
}

impl AsRef<str> for Detached {
    fn as_ref(&self) -> &str {
        &self.handle
    }
}

impl fmt::Debug for Detached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Detached").field("resource", &self.resource).field("mode", &self.mode).field("fence", &self.fence).finish_non_exhaustive()
    }
}

/// A detach that is under way. Dropped before it is done, the lock is lost, and free soon: nobody has its handle.
#[must_use = "dropped, the lock is lost"]
pub struct Detaching {
    session: Arc<Owned>,
    hold: Arc<Hold>,
    id: u64,
    sent: f64,
    taken: bool,
}

impl Detaching {
    pub(crate) fn new(session: Arc<Owned>, hold: Arc<Hold>, id: u64, sent: f64) -> Detaching {
        Detaching { session, hold, id, sent, taken: false }
    }

    pub(crate) fn wait(mut self) -> Result<Detached> {
        self.taken = true; // the session answers in any case
        let outcome = self.session.wait(self.id);
        self.detached(outcome)
    }

    fn detached(&self, outcome: Outcome) -> Result<Detached> {
        let (answer, _) = outcome?;
        Detached::of(answer.get("detached"), self.sent)
    }
}

impl Future for Detaching {
    type Output = Result<Detached>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.session.poll(self.id, cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(outcome) => {
                self.taken = true;
                Poll::Ready(self.detached(outcome))
            }
        }
    }
}

impl Drop for Detaching {
    fn drop(&mut self) {
        if !self.taken {
            self.session.keep_no_handle(self.id, &self.hold);
        }
    }
}
