//! Runs examples/contract/*.json; its README.md says what the fields mean. Calls that wait are
//! futures, and each is given up by dropping it.

mod support;

use locksidecar::{Acquire, Client, Error, Held, Kind};
use std::collections::HashMap;
use std::fs;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use support::{block_on, eventually, http, path, stores, tap, test, Json, Sidecar, PATIENCE};

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
            let client = Client::builder().socket(self.sidecars[sidecar.text()].socket()).name(name).build();
            client.open().unwrap();
            self.clients.insert(name.clone(), client);
        }
        for (i, step) in case.get("steps").items().iter().enumerate() {
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
            "release" => {
                let left = refused(step, hold().release());
                if step.get("count").is_some() {
                    assert_eq!(left, Some(step.get("count").number() as u32), "count");
                }
            }
            "downgrade" => drop(refused(step, hold().downgrade())),
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
            "pause" => thread::sleep(milliseconds(step, "time").unwrap()),
            other => panic!("this runner does not know the step {other}"),
        }
    }

    fn acquire(&mut self, step: &Json) {
        let mut lock = self.clients[step.get("client").text()].lock(step.get("resource").text());
        if step.get("mode").text() == "SHARED" {
            lock = lock.shared();
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

    fn granted(&mut self, step: &Json, result: Result<Held, Error>) {
        let Some(held) = refused(step, result) else { return };
        if step.get("count").is_some() {
            assert_eq!(held.count(), step.get("count").number() as u32, "count");
        }
        let name = step.get("hold").text().to_string();
        let (noted, told) = (self.noted.clone(), format!("lost:{name}"));
        held.on_lost(move |_| note(&noted, told));
        self.holds.insert(name, held);
    }
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
    if *step.get("guard") == Json::Bool(true) {
        let guard = held.guard().expect("there is a guard");
        assert!(!guard.sql.is_empty() && !guard.args.is_empty(), "{guard:?}");
    }
}

fn main() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../contract");
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|f| f.unwrap().path()).filter(|f| f.extension().is_some_and(|e| e == "json")).collect();
    files.sort();
    let mut tests = Vec::new();
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
        for (store, url) in chosen {
            let case = case.clone();
            tests.push(test(&format!("{name} on {store}"), move || Run::default().all(&case, &url)));
        }
    }
    tap(tests);
}
