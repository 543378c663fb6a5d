//! Looks at who holds what, each on a connection of its own, without a session.

use crate::detached::Detached;
use crate::duration;
use crate::error::{Error, Kind};
use crate::json::Json;
use crate::session::{ANSWER_LIMIT, LONGEST};
use crate::sys::{self, now};
use crate::{Client, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;
use std::vec;

/// Seconds. No look takes so long, whatever grace the app gives.
const LONGEST_LOOK: f64 = 3600.0;
/// Seconds: for so long a sidecar that hangs up is asked again.
const ASK_AGAIN: f64 = 10.0;
/// What may have been done where there was no answer.
const ONCE_ONLY: [&str; 3] = ["forceRelease", "releaseHandle", "resetOutcome"];

/// One hold or one waiter, as the sidecar tells it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Holder {
    /// Names the hold or the waiter.
    pub lock_id: String,
    /// `EXCLUSIVE`, `SHARED` or `PERMIT`.
    pub mode: String,
    /// Of a hold.
    pub fence: u64,
    /// For how long it has held or waited.
    pub age: Duration,
    /// Its sidecar.
    pub sidecar: String,
    /// Its process; 0 where its sidecar cannot see that.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// The name of its client.
    pub session: String,
    /// Who in the app asked.
    pub owner: String,
    /// Of its client.
    pub metadata: BTreeMap<String, String>,
    /// Of a permit: which one.
    pub slot: Option<u32>,
    /// A forced release is under way.
    pub revoked: bool,
    /// No app has it: the sidecar gives it to who asks.
    pub parked: bool,
    /// It is detached, and nobody has attached it.
    pub detached: bool,
    /// Nobody has it, and the store keeps others out for so long.
    pub kept_for: Option<Duration>,
}

/// Who holds a resource and who waits for it, everywhere.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LockState {
    /// What is locked.
    pub resource: String,
    /// Who holds it.
    pub holders: Vec<Holder>,
    /// Who waits for it, in the order in which they will be served.
    pub waiters: Vec<Holder>,
}

/// What a watch tells.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Change {
    /// `CURRENT`: it was there when the watch began. `SYNCED`: all of these were told. `CHANGED`, `FREE`. `MISSING`: other
    /// shards of the store do not answer than before. What they have stays as it was seen last.
    pub kind: String,
    /// What changed; None for `SYNCED` and `MISSING`.
    pub lock: Option<LockState>,
    /// With `MISSING`: these shards. None: all answer again.
    pub missing_shards: Vec<String>,
}

/// What became of an attempt at what is done once.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Outcome {
    /// What is done once.
    pub resource: String,
    /// `UNKNOWN`, `FAILED` or `SUCCEEDED`.
    pub state: String,
    /// Which attempt it was; 1 is the first.
    pub attempt: u32,
    /// As its release said.
    pub note: String,
    /// How long ago it was recorded, by the store's clock.
    pub age: Duration,
    /// Of the hold under which the attempt was made, as are the rest.
    pub lock_id: String,
    /// Its fence.
    pub fence: u64,
    /// Its sidecar.
    pub sidecar: String,
    /// Its process; 0 where its sidecar could not see that.
    pub pid: u32,
    /// The name of its client.
    pub session: String,
    /// Who in the app asked.
    pub owner: String,
    /// Of its client.
    pub metadata: BTreeMap<String, String>,
}

/// Who leads: who holds a resource exclusively.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Leader {
    /// For what.
    pub resource: String,
    /// Somebody does.
    pub leads: bool,
    /// What it publishes: the metadata `leader` of its client.
    pub value: String,
    /// Who it is; its fence grows with each leader.
    pub holder: Option<Holder>,
    /// How many wait to lead.
    pub candidates: u32,
}

/// The sidecar itself.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Info {
    /// Of the program.
    pub version: String,
    /// Its name.
    pub sidecar: String,
    /// Its store, without secrets.
    pub store: String,
    /// The namespace of its locks.
    pub namespace: String,
    /// Locks can be granted.
    pub ready: bool,
    /// Why not.
    pub not_ready_because: String,
    /// It is about to stop.
    pub draining: bool,
    /// How many apps are connected.
    pub sessions: u32,
    /// How many locks they hold.
    pub holds: u32,
    /// How many requests wait.
    pub waiters: u32,
}

fn text(m: &Json, field: &str) -> String {
    m.get(field).text().into()
}

fn count(m: &Json, field: &str) -> u32 {
    m.get(field).number() as u32
}

fn number(m: &Json, field: &str) -> u64 {
    m.get(field).text().parse().unwrap_or(0)
}

fn texts(m: &Json, field: &str) -> BTreeMap<String, String> {
    m.get(field).fields().iter().map(|(key, value)| (key.clone(), value.text().into())).collect()
}

fn names(m: &Json, field: &str) -> Vec<String> {
    m.get(field).items().iter().map(|name| name.text().into()).collect()
}

fn yes(m: &Json, field: &str) -> bool {
    *m.get(field) == Json::Bool(true)
}

fn time(m: &Json) -> Duration {
    Duration::try_from_secs_f64(m.seconds()).unwrap_or(Duration::ZERO)
}

impl Holder {
    fn of(m: &Json) -> Holder {
        Holder {
            lock_id: text(m, "lockId"),
            mode: text(m, "mode"),
            fence: number(m, "fence"),
            age: time(m.get("age")),
            sidecar: text(m, "sidecar"),
            pid: count(m, "pid"),
            uid: count(m, "uid"),
            session: text(m, "session"),
            owner: text(m, "owner"),
            metadata: texts(m, "metadata"),
            slot: m.get("slot").is_some().then(|| count(m, "slot")),
            revoked: yes(m, "revoked"),
            parked: yes(m, "parked"),
            detached: yes(m, "detached"),
            kept_for: m.get("keptFor").is_some().then(|| time(m.get("keptFor"))),
        }
    }
}

impl LockState {
    fn of(m: &Json) -> LockState {
        let all = |field| m.get(field).items().iter().map(Holder::of).collect();
        LockState { resource: text(m, "resource"), holders: all("holders"), waiters: all("waiters") }
    }
}

impl Change {
    fn of(m: &Json) -> Change {
        let lock = m.get("lock").is_some().then(|| LockState::of(m.get("lock")));
        Change { kind: text(m, "kind"), lock, missing_shards: names(m, "missingShards") }
    }
}

impl Outcome {
    pub(crate) fn of(m: &Json) -> Outcome {
        Outcome {
            resource: text(m, "resource"),
            state: text(m, "state"),
            attempt: count(m, "attempt"),
            note: text(m, "note"),
            age: time(m.get("age")),
            lock_id: text(m, "lockId"),
            fence: number(m, "fence"),
            sidecar: text(m, "sidecar"),
            pid: count(m, "pid"),
            session: text(m, "session"),
            owner: text(m, "owner"),
            metadata: texts(m, "metadata"),
        }
    }
}

impl Leader {
    fn of(m: &Json) -> Leader {
        Leader {
            resource: text(m, "resource"),
            leads: yes(m, "leads"),
            value: text(m, "value"),
            holder: m.get("holder").is_some().then(|| Holder::of(m.get("holder"))),
            candidates: count(m, "candidates"),
        }
    }
}

/// Looks block, for milliseconds; in async code call them where that is allowed.
impl Client {
    /// Who holds a resource and who waits for it.
    pub fn get(&self, resource: impl Into<String>) -> Result<LockState> {
        Ok(LockState::of(&self.look("getLock", vec![("resource", resource.into().into())], "lock", 0.0)?))
    }

    /// Whether some app holds it, here or anywhere else.
    pub fn is_locked(&self, resource: impl Into<String>) -> Result<bool> {
        Ok(self.get(resource)?.holders.iter().any(|holder| !holder.parked))
    }

    /// What [`get`](Client::get) tells, of all with that prefix that are held or waited for, in byte order.
    pub fn list(&self, prefix: impl Into<String>) -> Listed<'_, LockState> {
        self.pages("listLocks", vec![("prefix", prefix.into().into())], "locks", LockState::of)
    }

    /// What is there, then each change that the sidecar sees when it looks, once an interval (100 ms to 1 min).
    pub fn watch(&self, prefix: impl Into<String>, interval: Duration) -> Result<Answers<Change>> {
        let body = vec![("prefix", prefix.into().into()), ("partial", Json::Bool(true)), ("interval", duration(interval).into())];
        self.follow("watchLocks", body, "watched", Change::of)
    }

    /// What became of what is done once: of all with that prefix, or only in the states `FAILED`, `UNKNOWN`, `SUCCEEDED`.
    pub fn outcomes(&self, prefix: impl Into<String>, states: &[&str]) -> Listed<'_, Outcome> {
        self.pages("listOutcomes", vec![("prefix", prefix.into().into()), ("states", states.join(",").into())], "outcomes", Outcome::of)
    }

    /// Forgets what became of it, for admins: it may be done once more. What was known of it.
    pub fn reset_outcome(&self, key: impl Into<String>) -> Result<Option<Outcome>> {
        let answer = self.look("resetOutcome", vec![("resource", key.into().into())], "outcomeReset", 0.0)?;
        let outcome = answer.get("outcome");
        Ok(outcome.is_some().then(|| Outcome::of(outcome)))
    }

    /// Who leads, and what it publishes.
    pub fn leader(&self, resource: impl Into<String>) -> Result<Leader> {
        Ok(Leader::of(&self.look("getLeader", vec![("resource", resource.into().into())], "leader", 0.0)?))
    }

    /// Who leads, then each change.
    pub fn watch_leader(&self, resource: impl Into<String>, interval: Duration) -> Result<Answers<Leader>> {
        let body = vec![("resource", resource.into().into()), ("interval", duration(interval).into())];
        self.follow("watchLeader", body, "leader", Leader::of)
    }

    /// Takes a lock from its holders, or only from the one with that lock id; for admins. The lock ids of those that had
    /// it. A holder has the grace to stop its work before others are granted.
    pub fn force(&self, resource: impl Into<String>, lock_id: Option<&str>, grace: Duration) -> Result<Vec<String>> {
        let lock_id = lock_id.unwrap_or_default().to_string();
        let body = vec![("resource", resource.into().into()), ("lockId", lock_id.into()), ("grace", duration(grace).into())];
        let answer = self.look("forceRelease", body, "forceReleased", grace.as_secs_f64())?;
        Ok(names(&answer, "lockIds"))
    }

    /// About the sidecar itself.
    pub fn info(&self) -> Result<Info> {
        let m = &self.look("getInfo", Vec::new(), "info", 0.0)?;
        Ok(Info {
            version: text(m, "version"),
            sidecar: text(m, "sidecar"),
            store: text(m, "store"),
            namespace: text(m, "namespace"),
            ready: yes(m, "ready"),
            not_ready_because: text(m, "notReadyBecause"),
            draining: yes(m, "draining"),
            sessions: count(m, "sessions"),
            holds: count(m, "holds"),
            waiters: count(m, "waiters"),
        })
    }

    /// Lets a lock that was detached end so much later than now, attached or not. Who has it attached calls
    /// [`Held::extend`](crate::Held::extend) then.
    pub fn extend_detached(&self, handle: impl AsRef<str>, ttl: Duration) -> Result<Detached> {
        let sent = now();
        let body = vec![("handle", handle.as_ref().to_string().into()), ("ttl", duration(ttl).into())];
        Detached::of(&self.look("extendHandle", body, "detached", 0.0)?, sent)
    }

    /// Ends a lock that was detached. Who has it attached loses it, with `TAKEN_OVER`.
    pub fn release_detached(&self, handle: impl AsRef<str>) -> Result<()> {
        self.look("releaseHandle", vec![("handle", handle.as_ref().to_string().into())], "handleReleased", 0.0).map(drop)
    }

    /// A sidecar that hangs up before it has answered is asked again for a while, but for what is done once.
    fn look(&self, kind: &'static str, body: Body, answer: &'static str, more: f64) -> Result<Json> {
        let end = now() + ASK_AGAIN;
        let mut pause = Duration::from_millis(10);
        loop {
            let asked = Question::ask(self, kind, body.clone(), answer);
            match asked.and_then(|mut question| question.next(Some(now() + ANSWER_LIMIT + more))) {
                Err(e) if e.hung_up && !ONCE_ONLY.contains(&kind) && now() + pause.as_secs_f64() < end => {}
                other => return other,
            }
            thread::sleep(pause);
            pause = (2 * pause).min(Duration::from_millis(500));
        }
    }

    fn pages<T>(&self, kind: &'static str, body: Body, answer: &'static str, read: fn(&Json) -> T) -> Listed<'_, T> {
        let rows = Vec::new().into_iter();
        Listed { client: self, kind, body, answer, read, rows, token: Some(String::new()), missing: BTreeSet::new() }
    }

    fn follow<T>(&self, kind: &'static str, body: Body, answer: &'static str, read: fn(&Json) -> T) -> Result<Answers<T>> {
        Ok(Answers { question: Some(Question::ask(self, kind, body, answer)?), read })
    }
}

type Body = Vec<(&'static str, Json)>;

/// What a list has, page by page. After an error there is nothing.
///
/// Where shards of the store do not answer, it has what the others have. Then comes an error with
/// [`missing_shards`](Error::missing_shards). So `collect::<Result<Vec<_>>>()` gives a list only where it is complete.
pub struct Listed<'a, T> {
    client: &'a Client,
    kind: &'static str,
    body: Body,
    answer: &'static str,
    read: fn(&Json) -> T,
    rows: vec::IntoIter<Json>,
    token: Option<String>, // of the next page; None: there is none
    missing: BTreeSet<String>,
}

impl<T> Listed<'_, T> {
    fn page(&mut self, token: String) -> Result<()> {
        let mut body = self.body.clone();
        body.extend([("partial", Json::Bool(true)), ("pageSize", Json::Number(1000.0)), ("pageToken", token.into())]);
        let page = self.client.look(self.kind, body, self.answer, 0.0)?;
        self.rows = page.get(self.answer).items().to_vec().into_iter();
        self.missing.extend(names(&page, "missingShards"));
        self.token = Some(text(&page, "nextPageToken")).filter(|token| !token.is_empty());
        Ok(())
    }
}

impl<T> Iterator for Listed<'_, T> {
    type Item = Result<T>;

    fn next(&mut self) -> Option<Result<T>> {
        loop {
            if let Some(row) = self.rows.next() {
                return Some(Ok((self.read)(&row)));
            }
            let Some(token) = self.token.take() else {
                let missing: Vec<String> = std::mem::take(&mut self.missing).into_iter().collect();
                return (!missing.is_empty()).then(|| Err(Error::incomplete(missing)));
            };
            if let Err(e) = self.page(token) {
                self.missing.clear();
                return Some(Err(e));
            }
        }
    }
}

/// What a watch tells, without an end: each `next` waits for more. After an error there is nothing. Dropped, it is over.
pub struct Answers<T> {
    question: Option<Question>,
    read: fn(&Json) -> T,
}

impl<T> Iterator for Answers<T> {
    type Item = Result<T>;

    fn next(&mut self) -> Option<Result<T>> {
        let next = self.question.as_mut()?.next(None);
        if next.is_err() {
            self.question = None;
        }
        Some(next.map(|m| (self.read)(&m)))
    }
}

/// A connection without a session: one request, and one answer or many.
struct Question {
    path: String,
    stream: UnixStream,
    answer: &'static str,
    rest: Vec<u8>,
}

impl Question {
    fn ask(client: &Client, kind: &str, body: Body, answer: &'static str) -> Result<Question> {
        let path = client.path()?;
        let body = body.into_iter().map(|(name, value)| (name.into(), value)).collect();
        let mut line = String::new();
        Json::Fields(vec![("requestId".into(), Json::Text("1".into())), (kind.into(), Json::Fields(body))]).write(&mut line);
        line.push('\n');
        if line.len() > LONGEST {
            return Err(Error::new(Kind::InvalidRequest, format!("the request is longer than {LONGEST} bytes")));
        }
        let question = Question { stream: sys::connect(&path)?, path: path.display().to_string(), answer, rest: Vec::new() };
        let mut unsent = line.as_bytes();
        while !unsent.is_empty() {
            match sys::send_now(&question.stream, unsent) {
                Ok(n) => unsent = &unsent[n..], // a new connection has room for all of it
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(question.gone(&format!(": {e}"))),
            }
        }
        Ok(question)
    }

    /// The next answer. SidecarSilent: there was none until then; None: whatever it takes.
    fn next(&mut self, end: Option<f64>) -> Result<Json> {
        let mut chunk = vec![0; LONGEST];
        let line = loop {
            if let Some(end) = self.rest.iter().position(|b| *b == b'\n') {
                break self.rest.drain(..=end).collect::<Vec<u8>>();
            }
            let left = end.map(|end| Duration::from_secs_f64((end - now()).clamp(0.0, LONGEST_LOOK)));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(Error::new(Kind::SidecarSilent, format!("the sidecar at {} did not answer in time; it may be frozen", self.path)));
            }
            let _ = self.stream.set_read_timeout(left.map(|left| left.max(Duration::from_millis(1))));
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(self.gone("")),
                Ok(n) => self.rest.extend_from_slice(&chunk[..n]),
                Err(e) if [ErrorKind::WouldBlock, ErrorKind::TimedOut, ErrorKind::Interrupted].contains(&e.kind()) => {}
                Err(e) => return Err(self.gone(&format!(": {e}"))),
            }
        };
        let m = Json::parse(&String::from_utf8_lossy(&line)).unwrap_or(Json::Null);
        match (m.get("error"), m.get(self.answer)) {
            (Json::Null, Json::Null) => {
                let message = format!("what answers at {} is no sidecar, or an older one than this client", self.path);
                Err(Error::new(Kind::SidecarGone, message))
            }
            (Json::Null, answer) => Ok(answer.clone()),
            (error, _) => Err(Error::explain(error)),
        }
    }

    fn gone(&self, why: &str) -> Error {
        let message = format!("the connection to the sidecar at {} ended{why}", self.path);
        let mut e = Error::new(Kind::SidecarGone, message);
        e.hung_up = true;
        e
    }
}
