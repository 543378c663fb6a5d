//! Runs examples/contract/*.json; its README.md says what the fields mean. Calls that wait are
//! futures, and each is given up by dropping it.

mod support;

use locksidecar::{Acquire, Client, Detached, Error, Held, Kind, Leader};
use std::collections::HashMap;
use std::fs;
use std::process::Command;
use std::sync::{mpsc, Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use support::{block_on, eventually, http, path, stores, tap_alone, test, Json, Sidecar, PATIENCE};

type Noted = Arc<Mutex<HashMap<String, Instant>>>;

fn note(noted: &Noted, what: String) {
    noted.lock().unwrap().entry(what).or_insert_with(Instant::now);
}

/// A call that waits: another thread awaits it, until it is told to drop it.
struct Call {
    asked: Arc<Mutex<Option<Acquire>>>,
    got: Arc<Mutex<Option<Result<Held, String>>>>,
}

/// One run of one case.
#[derive(Default)]
struct Run {
    sidecars: HashMap<String, Sidecar>,
    clients: HashMap<String, Client>,
    holds: HashMap<String, Held>,
    calls: HashMap<String, Call>,
    handles: HashMap<String, Detached>,
    watches: HashMap<String, mpsc::Receiver<Leader>>,
    noted: Noted,
}

fn milliseconds(step: &Json, field: &str) -> Option<Duration> {
    step.get(field).is_some().then(|| Duration::from_secs_f64(step.get(field).number() / 1e3))
}

fn within(step: &Json) -> Duration {
    milliseconds(step, "within").unwrap_or(PATIENCE)
}

/// What it gives; None where it failed as it must.
fn refused<T>(step: &Json, result: Result<T, Error>) -> Option<T> {
    match (step.get("error").text(), result) {
        ("", Ok(value)) => Some(value),
        ("", Err(e)) => panic!("it fails with {}: {e}", e.kind().reason()),
        (want, Ok(_)) => panic!("it succeeds, and should fail with {want}"),
        (want, Err(e)) => {
            assert_eq!(e.kind().reason(), want, "{e}");
            for key in step.get("metadata").items() {
                assert!(!e.metadata(key.text()).unwrap_or_default().is_empty(), "no {key:?} in {e:?}");
            }
            None
        }
    }
}

impl Run {
    fn all(mut self, case: &Json, store: &str) {
        let namespace = format!("{}-{:?}", std::process::id(), Instant::now()).replace(|c: char| !c.is_ascii_alphanumeric(), "");
        for (name, flags) in case.get("sidecars").fields() {
            let mut all = vec![("name", name.as_str()), ("namespace", &namespace)];
            all.extend(flags.fields().iter().map(|(flag, value)| (flag.as_str(), value.text())));
            self.sidecars.insert(name.clone(), Sidecar::with(store, &all));
        }
        for (name, sidecar) in case.get("clients").fields() {
            let mut builder = Client::builder().socket(self.sidecars[sidecar.text()].socket()).name(name);
            for (key, value) in case.get("metadata").get(name).fields() {
                builder = builder.metadata(key, value.text());
            }
            let client = builder.build();
            client.open().unwrap();
            self.clients.insert(name.clone(), client);
        }
        self.steps(case.get("steps").items());
    }

    fn steps(&mut self, steps: &[Json]) {
        for (i, step) in steps.iter().enumerate() {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.step(step)));
            if let Err(why) = result {
                let text = why.downcast_ref::<String>().cloned().or(why.downcast_ref::<&str>().map(|s| s.to_string()));
                let mut written = String::new();
                step.write(&mut written);
                panic!("step {} {written}: {}", i + 1, text.unwrap_or_default());
            }
        }
    }

    fn step(&mut self, step: &Json) {
        let text = |field| step.get(field).text();
        let hold = || &self.holds[text("hold")];
        let sidecar = || &self.sidecars[text("sidecar")];
        match text("do") {
            "acquire" => self.acquire(step),
            "pending" => {
                thread::sleep(milliseconds(step, "time").unwrap());
                assert!(self.calls[text("call")].got.lock().unwrap().is_none(), "it was answered");
            }
            "cancel" => drop(self.calls[text("call")].asked.lock().unwrap().take()),
            "answer" => self.answer(step),
            "release" if step.get("outcome").is_some() => {
                let (held, note) = (hold(), text("note"));
                let done = if text("outcome") == "SUCCEEDED" { held.succeeded(note) } else { held.failed(note) };
                refused(step, done);
            }
            "release" => {
                let left = refused(step, hold().release());
                if step.get("count").is_some() {
                    assert_eq!(left, Some(step.get("count").number() as u32), "count");
                }
            }
            "downgrade" => drop(refused(step, hold().downgrade())),
            // The end of a block drops what it has. Here it is named again, so it is only released.
            "dispose" if hold().is_released() => {}
            "dispose" => drop(refused(step, hold().release())),
            "drop" => drop(self.holds.remove(text("hold"))),
            "extend" => drop(refused(step, hold().extend(milliseconds(step, "maxHold").unwrap()))),
            "detach" => {
                let held = hold();
                if let Some(detached) = refused(step, held.detach(milliseconds(step, "ttl").unwrap())) {
                    detached_as(step, (held.resource(), &held.mode(), held.fence()), &detached);
                    self.handles.insert(text("handle").into(), detached);
                }
            }
            "attach" => {
                let result = self.clients[text("client")].attach(&self.handles[text("handle")]).acquire();
                self.granted(step, result);
            }
            "extendHandle" => {
                let before = &self.handles[text("handle")];
                let after = self.clients[text("client")].extend_detached(before, milliseconds(step, "ttl").unwrap());
                if let Some(after) = refused(step, after) {
                    assert_eq!(before.handle(), after.handle());
                    detached_as(step, (before.resource(), before.mode(), before.fence()), &after);
                }
            }
            "releaseHandle" => drop(refused(step, self.clients[text("client")].release_detached(&self.handles[text("handle")]))),
            "same" => {
                let fences: Vec<u64> = step.get("holds").items().iter().map(|h| self.holds[h.text()].fence()).collect();
                assert!(fences.windows(2).all(|pair| pair[0] == pair[1]), "{fences:?}");
            }
            "check" => {
                let held = hold();
                if step.get("within").is_some() {
                    let want = text("error");
                    eventually("the check says so", within(step), || held.check().err().map_or("", |e| e.kind().reason()) == want);
                }
                refused(step, held.check());
            }
            "slots" => {
                let mut slots: Vec<_> = step.get("holds").items().iter().filter_map(|h| self.holds[h.text()].slot()).collect();
                slots.sort_unstable();
                assert_eq!(slots, step.get("are").items().iter().map(|n| n.number() as u32).collect::<Vec<_>>());
            }
            "draining" => eventually("it drains", within(step), || self.clients[text("client")].draining()),
            "terminate" => sidecar().terminate(),
            "ended" => {
                let ends = self.sidecars.get_mut(text("sidecar")).unwrap();
                eventually("it ends", within(step), || ends.ended());
            }
            "look" => look(step, hold()),
            "lost" => {
                let held = hold();
                let told = format!("lost:{}", text("hold"));
                eventually("it is told", within(step), || self.noted.lock().unwrap().contains_key(&told));
                let problem = block_on(held.until_lost(), PATIENCE).expect("the future is ready");
                assert_eq!(problem.lost_reason(), Some(text("reason")));
                assert_eq!(held.valid_for(), Duration::ZERO);
            }
            "rising" => {
                let fences: Vec<u64> = step.get("holds").items().iter().map(|h| self.holds[h.text()].fence()).collect();
                assert!(fences.windows(2).all(|pair| pair[0] < pair[1]), "{fences:?}");
            }
            "order" => {
                let noted = self.noted.lock().unwrap();
                assert!(noted[text("first")] < noted[text("then")], "{noted:?}");
            }
            "close" => self.clients[text("client")].close(),
            "open" => drop(refused(step, self.clients[text("client")].open())),
            "freeze" => sidecar().freeze(),
            "thaw" => sidecar().thaw(),
            "kill" => self.sidecars.get_mut(text("sidecar")).unwrap().kill(),
            "start" => self.sidecars.get_mut(text("sidecar")).unwrap().start(),
            "force" => {
                let url = format!("{}?grace={}s", path(text("resource")), step.get("grace").number() / 1e3);
                let socket = sidecar().socket();
                thread::spawn(move || http(&socket, "DELETE", &url));
            }
            "queue" => {
                let (holders, waiters) = (step.get("holders").number() as usize, step.get("waiters").number() as usize);
                let mut held = Vec::new();
                eventually("the queue", within(step), || {
                    let (now, waiting) = sidecar().lock(text("resource"));
                    held = now;
                    held.len() == holders && waiting.len() == waiters
                });
                for (want, holder) in step.get("owners").items().iter().zip(&held) {
                    let owner = holder.get("owner").text();
                    assert!(if want.text() == "*" { !owner.is_empty() } else { owner == want.text() }, "the owner is {owner}");
                }
            }
            "leader" => {
                let client = &self.clients[text("client")];
                let limit = milliseconds(step, "within").unwrap_or_default();
                eventually("the leader", limit, || self.leads(step, &client.leader(text("resource")).unwrap()));
            }
            "watchLeader" => {
                let leaders = self.clients[text("client")].watch_leader(text("resource"), milliseconds(step, "interval").unwrap()).unwrap();
                let (tell, told) = mpsc::channel();
                thread::spawn(move || leaders.map_while(Result::ok).try_for_each(|leader| tell.send(leader)));
                self.watches.insert(text("watch").into(), told);
            }
            "told" => eventually("it is told", within(step), || self.watches[text("watch")].try_iter().any(|leader| self.leads(step, &leader))),
            "stop" => {
                let (pid, seconds) = (std::process::id(), step.get("time").number() / 1e3);
                let script = format!("sleep 0.2; kill -STOP {pid}; sleep {seconds}; kill -CONT {pid}");
                let mut stops = Command::new("sh").args(["-c", &script]).spawn().unwrap();
                while step.get("hold").is_some() && stops.try_wait().unwrap().is_none() {
                    hold().check().unwrap();
                }
                assert!(stops.wait().unwrap().success());
            }
            "pause" => thread::sleep(milliseconds(step, "time").unwrap()),
            other => panic!("this runner does not know the step {other}"),
        }
    }

    fn acquire(&mut self, step: &Json) {
        let client = &self.clients[step.get("client").text()];
        let mut lock = match step.get("resources").items() {
            [] => client.lock(step.get("resource").text()),
            names => client.lock_all(names.iter().map(Json::text)),
        };
        if step.get("limit").is_some() {
            lock = lock.limit(step.get("limit").number() as u32);
        }
        if step.get("once").is_some() {
            lock = lock.once(milliseconds(step.get("once"), "keep"), step.get("once").get("maxAttempts").number() as u32);
        }
        if step.get("mode").text() == "SHARED" {
            lock = lock.shared();
        }
        if *step.get("detachable") == Json::Bool(true) {
            lock = lock.detachable();
        }
        if *step.get("reentrant") == Json::Bool(true) {
            lock = lock.reentrant();
        }
        if step.get("owner").is_some() {
            lock = lock.owner(step.get("owner").text());
        }
        if let Some(wait) = milliseconds(step, "wait") {
            lock = lock.wait(wait);
        }
        if let Some(limit) = milliseconds(step, "maxHold") {
            lock = lock.max_hold(limit);
        }
        if let Some(time) = milliseconds(step, "minHold") {
            lock = lock.min_hold(time);
        }
        let name = step.get("call").text().to_string();
        if name.is_empty() {
            return self.granted(step, lock.acquire());
        }
        let asked = Arc::new(Mutex::new(Some(lock.begin().unwrap())));
        let call = Call { asked: asked.clone(), got: Arc::default() };
        let (got, noted) = (call.got.clone(), self.noted.clone());
        thread::spawn(move || loop {
            let mut asked = asked.lock().unwrap();
            let Some(acquire) = asked.as_mut() else {
                *got.lock().unwrap() = Some(Err("CANCELLED".into()));
                return note(&noted, format!("got:{name}"));
            };
            if let Some(result) = block_on(acquire, Duration::from_millis(2)) {
                note(&noted, format!("got:{name}"));
                *got.lock().unwrap() = Some(result.map_err(|e| e.kind().reason().into()));
                return;
            }
            drop(asked);
            thread::sleep(Duration::from_millis(2)); // for who wants to drop it
        });
        self.calls.insert(step.get("call").text().into(), call);
    }

    fn answer(&mut self, step: &Json) {
        let got = self.calls[step.get("call").text()].got.clone();
        eventually("the answer", within(step), || got.lock().unwrap().is_some());
        let result = got.lock().unwrap().take().unwrap();
        match (step.get("error").text(), result) {
            ("", Ok(held)) => self.granted(step, Ok(held)),
            (want, Err(reason)) => assert_eq!(reason, want),
            (want, Ok(_)) => panic!("it succeeds, and should fail with {want}"),
        }
    }

    fn leads(&self, step: &Json, leader: &Leader) -> bool {
        let somebody = step.get("value").is_some();
        leader.leads == somebody
            && leader.holder.is_some() == somebody
            && leader.value == step.get("value").text()
            && (!step.get("hold").is_some() || leader.holder.as_ref().is_some_and(|h| h.fence == self.holds[step.get("hold").text()].fence()))
            && (!step.get("candidates").is_some() || f64::from(leader.candidates) == step.get("candidates").number())
    }

    fn granted(&mut self, step: &Json, result: Result<Held, Error>) {
        let Some(held) = refused(step, result) else { return };
        if step.get("count").is_some() {
            assert_eq!(held.count(), step.get("count").number() as u32, "count");
        }
        let name = step.get("hold").text().to_string();
        let (noted, told) = (self.noted.clone(), format!("lost:{name}"));
        if *step.get("unwatched") != Json::Bool(true) {
            held.on_lost(move |_| note(&noted, told));
        }
        self.holds.insert(name, held);
    }
}

fn detached_as(step: &Json, want: (&str, &str, u64), detached: &Detached) {
    assert_eq!((detached.resource(), detached.mode(), detached.fence()), want);
    let left = detached.valid_for();
    assert!(left > Duration::ZERO && left <= milliseconds(step, "ttl").unwrap(), "valid for {left:?}");
}

fn look(step: &Json, held: &Held) {
    if let Json::Bool(lost) = *step.get("lost") {
        assert_eq!(held.lost().is_some(), lost, "lost");
        if lost {
            assert_eq!(held.check().unwrap_err().kind(), Kind::LockLost);
        }
    }
    if let [least, most] = step.get("validFor").items() {
        let left = held.valid_for().as_secs_f64() * 1e3;
        assert!(least.number() <= left && left <= most.number(), "valid for {left} ms");
    }
    if step.get("mode").is_some() {
        assert_eq!(held.mode(), step.get("mode").text());
    }
    for (field, value) in step.fields() {
        match field.as_str() {
            "parts" => assert!(held.parts().iter().map(|p| p.resource.as_str()).eq(value.items().iter().map(Json::text)), "{:?}", held.parts()),
            "slot" => assert_eq!(held.slot(), value.is_some().then(|| value.number() as u32)),
            "attempt" => assert_eq!(held.attempt().unwrap_or(0), value.number() as u32),
            "previous" => {
                let previous = held.previous().map(|p| (p.state, p.attempt, p.note));
                let want = (value.get("state").text().to_string(), value.get("attempt").number() as u32, value.get("note").text().to_string());
                assert_eq!(previous, value.is_some().then_some(want));
            }
            _ => {}
        }
    }
    if *step.get("guard") == Json::Bool(true) {
        let guard = held.guard().expect("there is a guard");
        assert!(!guard.sql.is_empty() && !guard.args.is_empty(), "{guard:?}");
    }
}

fn main() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../contract");
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|f| f.unwrap().path()).filter(|f| f.extension().is_some_and(|e| e == "json")).collect();
    files.sort();
    let (mut tests, mut alone) = (Vec::new(), Vec::new());
    for file in files {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let case = Json::parse(&fs::read_to_string(&file).unwrap()).unwrap_or_else(|| panic!("{name} is no JSON"));
        let there = stores();
        let chosen: Vec<(&str, String)> = match case.get("store").text() {
            "" | "any" => vec![there.into_iter().next_back().unwrap_or(("embedded", "embedded:".into()))],
            "shared" => there.into_iter().collect(),
            store => there.into_iter().filter(|(name, _)| *name == store).collect(),
        };
        if chosen.is_empty() {
            tests.push(test(&format!("{name} # SKIP needs a store that the environment does not name"), || {}));
        }
        if let Some(needs) = case.get("needs").items().iter().find(|n| !["detach", "queue", "sessions", "stop", "unread"].contains(&n.text())) {
            tests.push(test(&format!("{name} # SKIP this runner has no {}", needs.text()), || {}));
            continue;
        }
        for (store, url) in chosen {
            let case = case.clone();
            let stops = case.get("needs").items().iter().any(|n| n.text() == "stop");
            let run = test(&format!("{name} on {store}"), move || Run::default().all(&case, &url));
            let list = if stops { &mut alone } else { &mut tests };
            list.push(run);
        }
    }
    tap_alone(tests, alone);
}
