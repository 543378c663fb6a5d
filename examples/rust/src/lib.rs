//! Distributed locks through the [locksidecar](https://github.com/locksidecar/locksidecar) process
//! beside the app, over its Unix socket. No dependency; blocking and async, with any runtime.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! let sidecar = locksidecar::Client::new();
//! let held = sidecar.lock("orders/42").wait(Duration::from_secs(5)).acquire()?;
//! held.check()?; // before each write, and the fence in it
//! println!("my fence is {}", held.fence());
//! held.release()?;
//! # Ok::<(), locksidecar::Error>(())
//! ```

#![warn(missing_docs)]

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadMe;

mod acquires;
mod detached;
mod error;
mod held;
mod json;
mod looks;
mod opening;
mod session;
mod state;
mod sys;

pub use detached::{Detached, Detaching};
pub use error::{Error, Kind};
pub use held::{Guard, Held, Part, Released, UntilLost};
pub use looks::{Answers, Change, Holder, Info, Leader, Listed, LockState, Outcome};

use json::Json;
use opening::Opening;
use session::{Ask, OnDraining, Owned, Session, ANSWER_LIMIT};
use std::future::{Future, IntoFuture};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

/// What this crate gives.
pub type Result<T> = std::result::Result<T, Error>;

const SYSTEM: &str = "/run/locksidecar";

pub(crate) fn duration(d: Duration) -> String {
    format!("{}.{:09}s", d.as_secs(), d.subsec_nanos())
}

/// The socket where sidecar and clients meet when nobody says otherwise.
pub fn default_socket() -> Result<PathBuf> {
    sys::default_socket(Path::new(SYSTEM))
}

#[doc(hidden)] // for the tests: another folder in place of /run/locksidecar
pub fn default_socket_in(system: &Path) -> Result<PathBuf> {
    sys::default_socket(system)
}

/// The sidecar beside this process. It connects when something is asked; all copies and all threads
/// share one session.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    settings: Settings,
    current: Mutex<Current>,
    /// Of the one who opens a session, which may take long. It is taken before `current`.
    opening: Mutex<()>,
}

#[derive(Default)]
struct Current {
    session: Option<Arc<Owned>>,
    closed: bool,
}

struct Settings {
    socket: Option<PathBuf>,
    name: String,
    metadata: Vec<(String, Json)>,
    connect_timeout: Duration,
    on_draining: Option<OnDraining>,
}

/// How a [`Client`] is made.
pub struct Builder(Settings);

impl Builder {
    /// The sidecar's socket; otherwise `$LOCKSIDECAR_SOCKET`, or the default.
    pub fn socket(mut self, path: impl Into<PathBuf>) -> Self {
        self.0.socket = Some(path.into());
        self
    }

    /// Who this is, in lists.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.0.name = name.into();
        self
    }

    /// More about it, in lists. Everybody who may list sees it.
    pub fn metadata(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.0.metadata.push((key.into(), Json::Text(value.into())));
        self
    }

    /// For how long the client calls again where a sidecar hangs up before it has answered, as it does to make
    /// room; 15 s by default.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.0.connect_timeout = limit;
        self
    }

    /// Calls back, in a thread of its own, with the time that is left when the sidecar is about to stop.
    pub fn on_draining(mut self, then: impl Fn(Duration) + Send + Sync + 'static) -> Self {
        self.0.on_draining = Some(Arc::new(then));
        self
    }

    /// The client. It does not connect yet.
    pub fn build(self) -> Client {
        Client(Arc::new(Inner { settings: self.0, current: Mutex::default(), opening: Mutex::default() }))
    }
}

impl Default for Client {
    fn default() -> Self {
        Client::builder().build()
    }
}

impl Client {
    /// A client of the sidecar at `$LOCKSIDECAR_SOCKET`, or at the default socket.
    pub fn new() -> Client {
        Client::default()
    }

    /// A client with other settings.
    pub fn builder() -> Builder {
        let connect_timeout = Duration::from_secs(15);
        Builder(Settings { socket: None, name: String::new(), metadata: Vec::new(), connect_timeout, on_draining: None })
    }

    /// Opens the session now, and not with the first lock. Blocks for as long as the sidecar takes: a millisecond.
    pub fn open(&self) -> Result<()> {
        self.current().closed = false;
        self.session().map(drop)
    }

    /// Releases everything, and waits for that. Only [`open`](Client::open) opens another session.
    pub fn close(&self) {
        let session = {
            let mut current = self.current();
            current.closed = true;
            current.session.clone()
        };
        if let Some(session) = session {
            session.close();
        }
    }

    /// The sidecar is about to stop: finish, and release.
    pub fn draining(&self) -> bool {
        self.current().session.as_ref().is_some_and(|s| s.draining())
    }

    /// A lock, which is not taken yet.
    pub fn lock(&self, resource: impl Into<String>) -> Lock {
        Lock::new(self, "resource", Json::Text(resource.into()))
    }

    /// Several locks, 2 to 16: all or none, within one wait, and in one order everywhere.
    pub fn lock_all<S: Into<String>>(&self, resources: impl IntoIterator<Item = S>) -> Lock {
        Lock::new(self, "resources", Json::Items(resources.into_iter().map(|r| Json::Text(r.into())).collect()))
    }

    /// A lock that was [detached](Held::detach), with the fence that it had: a text, or what `detach` gave. Who has it
    /// attached elsewhere loses it, with `TAKEN_OVER`. NotHolder: it was released, or its time is over. After any other error, and
    /// when the future is dropped, it can be attached again.
    pub fn attach(&self, handle: impl AsRef<str>) -> Lock {
        let lock = Lock::new(self, "handle", Json::Text(handle.as_ref().into()));
        Lock { mode: None, wait: Some(Duration::ZERO), ..lock }
    }

    fn path(&self) -> Result<PathBuf> {
        self.0.settings.path()
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.0.current.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The session of this process; a new one where the last has ended.
    fn session(&self) -> Result<Arc<Owned>> {
        if let Some(session) = self.is_open()? {
            return Ok(session);
        }
        let _one = state::lock(&self.0.opening);
        if let Some(session) = self.is_open()? {
            return Ok(session); // another thread has opened it meanwhile
        }
        let session = self.0.settings.connect(|| self.current().closed)?;
        let mut current = self.current();
        if current.closed {
            drop(current);
            session.close();
            return Err(closed());
        }
        current.session = Some(session.clone());
        Ok(session)
    }

    /// The session, where there is one that has not ended.
    fn is_open(&self) -> Result<Option<Arc<Owned>>> {
        let current = self.current();
        if current.closed {
            return Err(closed());
        }
        Ok(current.session.as_ref().filter(|s| s.error().is_none()).cloned())
    }

    /// Sends an acquire. What could not be sent, because the session has just ended, goes to a new one.
    fn post(&self, ask: impl Fn() -> Ask) -> Result<(Arc<Owned>, u64)> {
        loop {
            let session = self.session()?;
            match session.post(ask()) {
                Ok(id) => return Ok((session, id)),
                Err(_) if session.error().is_some() => {}
                Err(e) => return Err(e),
            }
        }
    }
}

impl Settings {
    fn path(&self) -> Result<PathBuf> {
        self.socket.clone().map_or_else(default_socket, Ok)
    }

    /// A sidecar that hangs up before it has answered is called again: where connections are short, it
    /// does so to make room.
    fn connect(&self, is_closed: impl Fn() -> bool) -> Result<Arc<Owned>> {
        let path = self.path()?;
        let end = sys::now() + self.connect_timeout.as_secs_f64();
        let mut pause = Duration::from_millis(50);
        loop {
            let open = vec![("name".into(), Json::Text(self.name.clone())), ("metadata".into(), Json::Fields(self.metadata.clone()))];
            match Session::open(&path, open, self.on_draining.clone()) {
                Err(e) if e.kind() == Kind::SidecarGone && sys::now() + pause.as_secs_f64() < end => {}
                other => return other,
            }
            thread::sleep(pause);
            if is_closed() {
                return Err(closed());
            }
            pause = (2 * pause).min(Duration::from_secs(1));
        }
    }
}

fn closed() -> Error {
    Error::new(Kind::SessionClosed, "this process has closed the session; open() opens another")
}

/// A lock that is not taken yet, and how it is to be: take it by [`acquire`](Lock::acquire), or await it.
#[derive(Clone)]
#[must_use = "it is not taken yet"]
pub struct Lock {
    client: Client,
    fields: Vec<(String, Json)>,
    mode: Option<&'static str>,
    owner: Option<String>,
    wait: Option<Duration>,
    max_hold: Option<Duration>,
    min_hold: Option<Duration>,
}

impl Lock {
    fn new(client: &Client, name: &str, resource: Json) -> Lock {
        let fields = vec![(name.into(), resource)];
        Lock { client: client.clone(), fields, mode: Some("EXCLUSIVE"), owner: None, wait: None, max_hold: None, min_hold: None }
    }

    fn with(mut self, name: &str, value: Json) -> Lock {
        self.fields.push((name.into(), value));
        self
    }

    /// Waits for so long at most (24 hours); 0: tries once. Otherwise, and with [`Duration::MAX`], it waits for as long as it takes.
    pub fn wait(mut self, limit: Duration) -> Lock {
        self.wait = Some(limit).filter(|limit| *limit < Duration::MAX);
        self
    }

    /// Beside other shared holders.
    pub fn shared(mut self) -> Lock {
        self.mode = Some("SHARED");
        self
    }

    /// One of so many permits, in place of the lock; [`Held::slot`] says which.
    pub fn limit(mut self, permits: u32) -> Lock {
        self.mode = Some("PERMIT");
        self.with("limit", Json::Number(permits.into()))
    }

    /// It is lost after this time.
    pub fn max_hold(mut self, limit: Duration) -> Lock {
        self.max_hold = Some(limit);
        self
    }

    /// Others are kept out for so long after the grant at least, also after the release.
    pub fn min_hold(mut self, time: Duration) -> Lock {
        self.min_hold = Some(time);
        self
    }

    /// Who in the app asks, for lists and for deadlocks; otherwise the thread.
    pub fn owner(mut self, owner: impl Into<String>) -> Lock {
        self.owner = Some(owner.into());
        self
    }

    /// Enters again what the same owner has entered so. Each is released.
    pub fn reentrant(self) -> Lock {
        self.with("reentrant", Json::Bool(true))
    }

    /// Whether SQL stores give a [`Guard`]; otherwise as the store's URL says.
    pub fn guard(self, guard: bool) -> Lock {
        self.with("guard", Json::Bool(guard))
    }

    /// An attempt at what must succeed only once: [`Held::succeeded`], [`Held::failed`]. How long the outcome is
    /// remembered (None: 30 days), and after how many attempts there is no other (0: no limit).
    pub fn once(self, keep: Option<Duration>, max_attempts: u32) -> Lock {
        let mut once = vec![("maxAttempts".into(), Json::Number(max_attempts.into()))];
        if let Some(keep) = keep {
            once.push(("keep".into(), Json::Text(duration(keep))));
        }
        self.with("once", Json::Fields(once))
    }

    /// It may be [detached](Held::detach).
    pub fn detachable(self) -> Lock {
        self.with("detachable", Json::Bool(true))
    }

    /// Takes it.
    pub fn acquire(self) -> Result<Held> {
        self.begin()?.wait()
    }

    /// Asks for it, and does not wait for the answer.
    pub fn begin(self) -> Result<Acquire> {
        let mut body = self.fields;
        body.extend(self.mode.map(|mode| ("mode".into(), Json::Text(mode.into()))));
        let owner = self.owner.unwrap_or_else(|| format!("pid {} {:?}", std::process::id(), thread::current().id()));
        body.push(("owner".into(), Json::Text(owner)));
        for (name, value) in [("wait", self.wait), ("maxHold", self.max_hold), ("minHold", self.min_hold)] {
            if let Some(value) = value {
                body.push((name.into(), Json::Text(duration(value))));
            }
        }
        let limit = self.wait.map(|wait| wait.as_secs_f64() + ANSWER_LIMIT);
        let max_hold = self.max_hold.map(|d| d.as_secs_f64());
        let asked = self.client.post(|| Ask { kind: "acquire", body: body.clone(), max_hold, limit, ..Ask::default() })?;
        Ok(Acquire { client: self.client, asked: Mutex::new(Ok(asked)), opening: None, taken: false })
    }
}

impl IntoFuture for Lock {
    type Output = Result<Held>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<Held>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async {
            if self.client.is_open()?.is_none() {
                Opening::new(&self.client).await?;
            }
            self.begin()?.await
        })
    }
}

/// An acquire that is under way: await it, or wait for it. Dropped before that, it is given up, with what it has got.
#[must_use = "dropped, it is given up"]
pub struct Acquire {
    client: Client,
    /// Of which session it is which request, or why no other session could be had.
    asked: Mutex<Result<(Arc<Owned>, u64)>>,
    /// The session that it goes to next, while that is opened.
    opening: Option<Opening>,
    taken: bool,
}

impl Acquire {
    /// Waits for the lock.
    pub fn wait(mut self) -> Result<Held> {
        self.taken = true; // the session answers in any case
        loop {
            let (session, id) = self.asked()?;
            let outcome = session.wait(id);
            if !self.goes_on() {
                return held(session, outcome);
            }
        }
    }

    /// Whether there is an answer.
    pub fn is_done(&self) -> bool {
        self.goes_on();
        self.asked().map_or(true, |(session, id)| session.answered(id))
    }

    fn asked(&self) -> Result<(Arc<Owned>, u64)> {
        state::lock(&self.asked).clone()
    }

    /// Where it never reached the sidecar before the session ended, it goes to another. Whether it did.
    fn goes_on(&self) -> bool {
        let mut asked = state::lock(&self.asked);
        let Some(unsent) = asked.as_ref().ok().and_then(|(session, id)| session.unsent(*id)) else { return false };
        *asked = self.client.post(|| unsent.clone());
        true
    }

    /// The same, where another session may have to be opened for it: nobody waits for that here.
    fn poll_goes_on(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let (session, id) = self.asked()?;
        if self.opening.is_none() {
            if !session.is_unsent(id) {
                return Poll::Ready(Ok(()));
            }
            if self.client.is_open()?.is_none() {
                self.opening = Some(Opening::new(&self.client));
            }
        }
        if let Some(opening) = &mut self.opening {
            let Poll::Ready(opened) = Pin::new(opening).poll(cx) else { return Poll::Pending };
            self.opening = None;
            opened?;
        }
        self.goes_on();
        Poll::Ready(Ok(()))
    }
}

fn held(session: Arc<Owned>, outcome: state::Outcome) -> Result<Held> {
    match outcome? {
        (_, Some(hold)) => Ok(Held::new(session, hold)),
        (answer, None) => Err(Error::new(Kind::Internal, format!("this is no grant: {answer:?}"))),
    }
}

impl Future for Acquire {
    type Output = Result<Held>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let Poll::Ready(on) = self.poll_goes_on(cx) else { return Poll::Pending };
            on?;
            let (session, id) = self.asked()?;
            let Poll::Ready(outcome) = session.poll(id, cx) else { return Poll::Pending };
            if !session.is_unsent(id) {
                self.taken = true;
                return Poll::Ready(held(session, outcome));
            }
        }
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        if let (false, Ok((session, id))) = (self.taken, self.asked()) {
            session.abandon(id);
        }
    }
}

#[cfg(test)]
mod tests;
