//! Sidecars for tests: the real program, on the store that the environment names. And tests, told as TAP.
#![allow(dead_code)] // each test uses its part

#[path = "../../src/json.rs"]
#[allow(unused)]
mod json;
pub use json::Json;

use std::collections::BTreeMap;
use std::fs;
use std::future::Future;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// For everything that must happen, however busy the machine is.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub type Test = (String, Box<dyn Fn() + Send + Sync>);

/// Runs tests, a few beside each other: most of what they do is to wait.
pub fn tap(tests: Vec<Test>) {
    tap_alone(tests, Vec::new());
}

/// The same, and then others, one by one.
pub fn tap_alone(mut tests: Vec<Test>, alone: Vec<Test>) {
    let beside = tests.len();
    tests.extend(alone);
    let (next, bad) = (AtomicU32::new(0), Mutex::new(false));
    run(&tests[..beside], 4, &next, &bad);
    next.store(beside as u32, Ordering::SeqCst);
    run(&tests, 1, &next, &bad);
    println!("1..{}", tests.len());
    if *bad.lock().unwrap() {
        std::process::exit(1);
    }
}

fn run(tests: &[Test], threads: usize, next: &AtomicU32, bad: &Mutex<bool>) {
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| loop {
                let number = next.fetch_add(1, Ordering::SeqCst) as usize;
                let Some((name, test)) = tests.get(number) else { return };
                let began = Instant::now();
                let result = catch_unwind(AssertUnwindSafe(test));
                let mut told = format!("{} {} - {name}\n", if result.is_ok() { "ok" } else { "not ok" }, number + 1);
                told += &format!("  ---\n  duration_ms: {:.1}\n", began.elapsed().as_secs_f64() * 1e3);
                let mut bad = bad.lock().unwrap(); // one writes at a time
                if let Err(why) = result {
                    let text = why.downcast_ref::<String>().cloned().or(why.downcast_ref::<&str>().map(|s| s.to_string()));
                    told += &format!("  {}\n", text.unwrap_or_default().replace('\n', "\n  "));
                    *bad = true;
                }
                println!("{told}  ...");
            });
        }
    });
}

pub fn test(name: &str, test: impl Fn() + Send + Sync + 'static) -> Test {
    (name.into(), Box::new(test))
}

/// Polls for a condition.
pub fn eventually(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + limit;
    while !condition() {
        assert!(Instant::now() < end, "in vain: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// As a runtime does: polls a future until it is ready. None: it is not in time.
pub fn block_on<F: Future>(future: F, limit: Duration) -> Option<F::Output> {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let (mut future, end) = (Box::pin(future), Instant::now() + limit);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(value);
        }
        thread::park_timeout(end.checked_duration_since(Instant::now())?);
    }
}

pub fn stores() -> BTreeMap<&'static str, String> {
    let all = [("redis", "LOCKSIDECAR_TEST_REDIS"), ("mysql", "LOCKSIDECAR_TEST_MYSQL")];
    all.into_iter().filter_map(|(name, var)| Some((name, std::env::var(var).ok().filter(|url| !url.is_empty())?))).collect()
}

pub struct Sidecar {
    dir: PathBuf,
    args: Vec<String>,
    child: Option<Child>,
}

static LAST: AtomicU32 = AtomicU32::new(0);

impl Sidecar {
    pub fn new() -> Sidecar {
        Sidecar::with("embedded:", &[("ttl", "2s")])
    }

    pub fn with(store: &str, flags: &[(&str, &str)]) -> Sidecar {
        let dir = std::env::temp_dir().join(format!("ls-{}-{}", std::process::id(), LAST.fetch_add(1, Ordering::SeqCst)));
        fs::create_dir(&dir).unwrap();
        let mut args: Vec<String> = ["serve", "--store", store, "--socket"].map(String::from).into();
        args.push(dir.join("s").display().to_string());
        for (name, value) in flags {
            args.extend([format!("--{name}"), value.to_string()]);
        }
        let mut sidecar = Sidecar { dir, args, child: None };
        sidecar.start();
        sidecar
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.join("s")
    }

    pub fn client(&self) -> locksidecar::Client {
        locksidecar::Client::builder().socket(self.socket()).build()
    }

    pub fn start(&mut self) {
        let binary = std::env::var("LOCKSIDECAR_BINARY").unwrap_or(concat!(env!("CARGO_MANIFEST_DIR"), "/../../bin/locksidecar").into());
        assert!(Path::new(&binary).exists(), "there is no {binary}: run \"make build\", or name the program in LOCKSIDECAR_BINARY");
        let log = fs::File::create(self.dir.join("log")).unwrap();
        let mut command = Command::new(binary);
        command.args(&self.args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("LOCKSIDECAR_")) {
            command.env_remove(name);
        }
        self.child = Some(command.spawn().unwrap());
        eventually("the sidecar is ready", PATIENCE, || {
            let ended = self.child.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "the sidecar has ended: {}", fs::read_to_string(self.dir.join("log")).unwrap());
            http(&self.socket(), "GET", "/readyz").0 == 200
        });
    }

    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    pub fn ended(&mut self) -> bool {
        self.child.as_mut().map_or(true, |child| child.try_wait().unwrap().is_some())
    }

    fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    fn signal(&self, name: &str) {
        assert!(Command::new("kill").args([&format!("-{name}"), &self.pid().to_string()]).status().unwrap().success());
    }

    /// It drains, and ends.
    pub fn terminate(&self) {
        self.signal("TERM");
    }

    pub fn freeze(&self) {
        self.signal("STOP");
        let stat = format!("/proc/{}/stat", self.pid());
        eventually("it stops", PATIENCE, || fs::read_to_string(&stat).unwrap().contains(") T "));
    }

    pub fn thaw(&self) {
        self.signal("CONT");
    }

    /// Holders and waiters, without holders that are parked: no app has those.
    pub fn lock(&self, resource: &str) -> (Vec<Json>, Vec<Json>) {
        let (status, body) = http(&self.socket(), "GET", &path(resource));
        assert_eq!(status, 200, "{body}");
        let lock = Json::parse(&body).unwrap();
        let holders = lock.get("holders").items().iter().filter(|h| *h.get("parked") != Json::Bool(true)).cloned().collect();
        (holders, lock.get("waiters").items().to_vec())
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        self.kill();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// One call of the API, past the client: status and body; 0: no answer.
pub fn http(socket: &Path, method: &str, path: &str) -> (u32, String) {
    let mut answer = String::new();
    if let Ok(mut stream) = UnixStream::connect(socket) {
        let _ = write!(stream, "{method} {path} HTTP/1.1\r\nHost: locksidecar\r\nConnection: close\r\n\r\n");
        let _ = stream.read_to_string(&mut answer);
    }
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    (head.get(9..12).unwrap_or_default().parse().unwrap_or(0), body.into())
}

pub fn path(resource: &str) -> String {
    let mut path = "/v1/locks/".to_string();
    for b in resource.bytes() {
        match b {
            b'/' | b'-' | b'_' | b'.' | b'~' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => path.push(b as char),
            b => path += &format!("%{b:02X}"),
        }
    }
    path
}
