//! The acquires of a session: those that are on their way, and those that queue here, as the sidecar takes only so many.

use crate::error::{Error, Kind};
use crate::json::Json;
use crate::session::{Ask, ANSWER_LIMIT};
use crate::state::{line, State};
use crate::sys::now;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// So many acquires of one session the sidecar takes at a time, unless it says otherwise.
const MOST: usize = 1000;
/// From here on an acquire queues here where another for the same resource is on its way. One for a resource of
/// which none is still gets through: its holder may wait for nothing else.
const MANY: usize = 800;

/// What an acquire asks for, and whether it is a try: these are answered at once, so they go first.
#[derive(Clone)]
pub(crate) struct Wanted {
    pub what: String,
    pub tries: bool,
}

/// What an acquire asks for. It may have to be sent later, or again.
pub(crate) struct Asked {
    pub wanted: Wanted,
    pub body: Vec<(String, Json)>,
    pub max_hold: Option<f64>,
    /// When its wait is over; infinite: never, or it is a try.
    pub end: f64,
}

impl Asked {
    pub fn new(body: Vec<(String, Json)>, max_hold: Option<f64>) -> Asked {
        let mut what = Vec::new();
        let mut wait = f64::INFINITY;
        for (name, value) in &body {
            match name.as_str() {
                "resource" => what.push(value.text()),
                "resources" => what.extend(value.items().iter().map(Json::text)),
                "wait" => wait = value.seconds(),
                _ => {} // what is attached shares one name, which is empty
            }
        }
        let wanted = Wanted { what: what.join("\0"), tries: wait == 0.0 };
        let end = if wait > 0.0 { now() + wait } else { f64::INFINITY };
        Asked { wanted, body, max_hold, end }
    }

    /// For another session: within what is left of its wait.
    pub fn again(&self) -> Ask {
        let body = self.body_now();
        let limit = if self.wanted.tries { Some(ANSWER_LIMIT) } else { self.end.is_finite().then(|| (self.end - now()).max(0.0) + ANSWER_LIMIT) };
        Ask { kind: "acquire", body, max_hold: self.max_hold, limit, ..Ask::default() }
    }

    /// With what is left of the wait.
    fn body_now(&self) -> Vec<(String, Json)> {
        let mut body = self.body.clone();
        if let (true, Some((_, wait))) = (self.end.is_finite(), body.iter_mut().find(|(name, _)| name == "wait")) {
            let left = Duration::try_from_secs_f64((self.end - now()).max(0.001)).unwrap_or(Duration::MAX);
            *wait = Json::Text(crate::duration(left));
        }
        body
    }
}

pub(crate) struct Acquires {
    /// Of those on their way.
    size: usize,
    /// Of these.
    most: usize,
    /// How many of them ask for what.
    asked: HashMap<String, usize>,
    /// These queue: tries first, then by their ids, which grow.
    queue: BTreeMap<(bool, u64), Wanted>,
    /// One was refused: there is no room before one is answered.
    full: bool,
    /// None of the queue has room while `MANY` are on their way, and what it asks for is asked for.
    stuck: bool,
}

impl Acquires {
    pub fn new() -> Acquires {
        Acquires { size: 0, most: MOST, asked: HashMap::new(), queue: BTreeMap::new(), full: false, stuck: false }
    }

    /// How many are on their way.
    pub fn size(&self) -> usize {
        self.size
    }

    pub fn most(&self) -> usize {
        self.most
    }

    /// Whether it is to be sent now: then it is on its way. Otherwise it queues here.
    pub fn enter(&mut self, id: u64, wanted: &Wanted) -> bool {
        if self.crowded(&wanted.what) {
            self.put(id, wanted);
            return false;
        }
        self.leaves(&wanted.what);
        true
    }

    /// The next one that is to be sent: it is on its way then.
    pub fn next(&mut self) -> Option<u64> {
        if self.queue.is_empty() || self.full || self.size >= self.most || self.stuck && self.size >= MANY {
            return None;
        }
        let Some(key) = self.queue.iter().find(|(_, wanted)| !self.crowded(&wanted.what)).map(|(key, _)| *key) else {
            self.stuck = true;
            return None;
        };
        let wanted = self.queue.remove(&key)?;
        self.leaves(&wanted.what);
        Some(key.1)
    }

    /// It is not on its way any more.
    pub fn answered(&mut self, wanted: &Wanted) {
        self.left(&wanted.what);
        self.full = false;
    }

    /// It was one too many, where `most` is what the sidecar takes, if it says so. It queues in its old place.
    pub fn refused(&mut self, id: u64, wanted: &Wanted, most: Option<usize>) {
        self.left(&wanted.what);
        self.most = self.most.min(most.unwrap_or(self.size)).max(1);
        self.full = self.size > 0;
        self.put(id, wanted);
    }

    pub fn is_queued(&self, id: u64, wanted: &Wanted) -> bool {
        self.queue.contains_key(&(!wanted.tries, id))
    }

    /// Takes it out of the queue; whether it was there.
    pub fn drop(&mut self, id: u64, wanted: &Wanted) -> bool {
        self.queue.remove(&(!wanted.tries, id)).is_some()
    }

    /// Empties the queue.
    pub fn clear(&mut self) {
        self.queue.clear();
    }

    fn put(&mut self, id: u64, wanted: &Wanted) {
        self.stuck = self.stuck && self.asked.contains_key(&wanted.what);
        self.queue.insert((!wanted.tries, id), wanted.clone());
    }

    fn crowded(&self, what: &str) -> bool {
        self.full || self.size >= self.most || self.size >= MANY && self.asked.contains_key(what)
    }

    fn leaves(&mut self, what: &str) {
        self.size += 1;
        *self.asked.entry(what.into()).or_default() += 1;
    }

    fn left(&mut self, what: &str) {
        self.size -= 1;
        if let Some(others) = self.asked.get_mut(what) {
            *others -= 1;
            if *others == 0 {
                self.asked.remove(what);
                self.stuck = false;
            }
        }
    }
}

impl State {
    /// Whether the sidecar takes fewer acquires at a time than are on their way.
    pub fn too_many(&self, error: &Error) -> bool {
        let limit = error.metadata("limit").unwrap_or("");
        error.kind() == Kind::LimitExceeded && (limit == "waiters" || limit == "requests in flight") && self.acquires.size() > 1
    }

    /// Sends what queues here, as far as there is room.
    pub fn send_queued(&mut self) {
        while let Some(id) = self.acquires.next() {
            let Some(call) = self.calls.get_mut(&id) else { continue };
            let Some(asked) = &call.asked else { continue };
            call.sent = now();
            call.start = self.written + self.out.len() as u64;
            self.out.extend_from_slice(line(id, "acquire", asked.body_now()).as_bytes());
        }
    }

    /// The connection has ended: notes the acquires that never reached the sidecar.
    pub fn keep_unsent(&mut self) {
        let State { calls, unsent, written, .. } = self;
        let waiting = calls.iter_mut().filter(|(_, call)| call.outcome.is_none() && !call.abandoned && call.start >= *written);
        unsent.extend(waiting.filter_map(|(id, call)| Some((*id, call.asked.take()?))));
    }

    /// When the wait of a call ends that queues here.
    pub fn queue_end(&self, id: u64) -> Option<f64> {
        let asked = self.calls.get(&id)?.asked.as_ref()?;
        self.acquires.is_queued(id, &asked.wanted).then_some(asked.end)
    }

    /// Takes a call out of the queue: the sidecar knows nothing of it. Whether it was there.
    pub fn drop_queued(&mut self, id: u64) -> bool {
        let State { calls, acquires, .. } = self;
        calls.get(&id).and_then(|call| call.asked.as_ref()).is_some_and(|asked| acquires.drop(id, &asked.wanted))
    }

    /// Ends the wait of a call that queues here, where it is over.
    pub fn end_wait(&mut self, id: u64) {
        if self.queue_end(id).is_some_and(|end| end <= now()) && self.drop_queued(id) {
            let State { calls, later, .. } = self;
            let Some(call) = calls.get_mut(&id) else { return };
            let what = call.asked.as_ref().map_or_else(String::new, |asked| asked.wanted.what.replace('\0', ", "));
            let message = "the wait is over: more of this process wait than the sidecar takes at a time";
            call.finish(Err(Error::new(Kind::WaitTimeout, message).with("resource", what)), later);
        }
    }
}

/// Of a try that has queued here for as long as the sidecar may take to answer one.
pub(crate) fn full(most: usize) -> Error {
    let message = "more of this process wait than the sidecar takes at a time, and none of them was answered";
    Error::new(Kind::LimitExceeded, message).with("limit", "waiters").with("max", most.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Queue {
        acquires: Acquires,
        last: u64,
    }

    impl Queue {
        fn ask(&mut self, what: &str, tries: bool) -> (u64, Wanted, bool) {
            self.last += 1;
            let wanted = Wanted { what: what.into(), tries };
            let sent = self.acquires.enter(self.last, &wanted);
            (self.last, wanted, sent)
        }

        fn goes(&mut self) -> Vec<u64> {
            std::iter::from_fn(|| self.acquires.next()).collect()
        }
    }

    fn queue() -> Queue {
        Queue { acquires: Acquires::new(), last: 0 }
    }

    #[test]
    fn what_nobody_asks_for_gets_through_before_those_who_came_earlier() {
        let mut q = queue();
        let busy: Vec<_> = (0..799).map(|_| q.ask("busy", false)).collect();
        let others: Vec<_> = (0..201).map(|i| q.ask(&i.to_string(), false)).collect();
        assert!(busy.iter().chain(&others).all(|(_, _, sent)| *sent));
        let waits: Vec<_> = ["busy", "0", "free", "1"].iter().map(|what| q.ask(what, false)).collect();
        assert!(waits.iter().all(|(_, _, sent)| !sent));
        q.acquires.answered(&busy[0].1);
        assert_eq!(q.goes(), [waits[2].0]);
        q.acquires.answered(&busy[1].1);
        assert!(q.goes().is_empty());
        let (_, late, sent) = q.ask("late", false);
        assert!(sent);
        let last = q.ask("last", false); // there is no room at all
        q.acquires.answered(&busy[2].1);
        assert_eq!(q.goes(), [last.0]);
        q.acquires.answered(&late);
        q.acquires.answered(&others[1].1);
        assert_eq!(q.goes(), [waits[3].0]);
        others[2..].iter().for_each(|(_, wanted, _)| q.acquires.answered(wanted));
        q.acquires.answered(&last.1);
        assert_eq!(q.goes(), [waits[0].0]);
        q.acquires.answered(&others[0].1);
        assert_eq!(q.goes(), [waits[1].0]);
    }

    #[test]
    fn who_is_refused_keeps_its_place_and_tries_go_first() {
        let mut q = queue();
        let (a, b, c) = (q.ask("a", false), q.ask("b", false), q.ask("c", false));
        q.acquires.refused(b.0, &b.1, Some(9));
        let later = q.ask("b", false);
        assert!(!later.2, "it would overtake the one that was refused");
        q.acquires.refused(c.0, &c.1, Some(9));
        assert!(q.goes().is_empty(), "none was answered");
        let tries = [q.ask("try", true), q.ask("try", true)];
        let gone = q.ask("gone", false);
        assert!(q.acquires.is_queued(gone.0, &gone.1));
        assert!(q.acquires.drop(gone.0, &gone.1) && !q.acquires.drop(gone.0, &gone.1));
        q.acquires.answered(&a.1);
        assert_eq!(q.goes(), [tries[0].0, tries[1].0, b.0, c.0, later.0]);
        assert_eq!(q.acquires.most(), 9);
        q.acquires.refused(b.0, &b.1, None);
        assert_eq!(q.acquires.most(), 4);
    }
}
