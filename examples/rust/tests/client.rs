//! What the contract does not say: what is Rust's own, and calls that other clients lack.

mod support;

use locksidecar::{Builder, Client, Kind};
use std::future::{Future, IntoFuture};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::pin::Pin;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{mpsc, Arc, Mutex};
use std::task::{Context, Poll, Wake};
use std::thread;
use std::time::Duration;
use support::{block_on, eventually, tap, test, Json, Sidecar, PATIENCE};

const NOW: Duration = Duration::ZERO;

fn kind<T>(result: locksidecar::Result<T>) -> Kind {
    match result {
        Ok(_) => panic!("it succeeds"),
        Err(e) => e.kind(),
    }
}

/// Does it in another thread: a test that hangs fails.
fn in_time<T: Send + 'static>(what: &str, call: impl FnOnce() -> T + Send + 'static) -> T {
    let (said, hears) = mpsc::channel();
    thread::spawn(move || said.send(call()));
    hears.recv_timeout(PATIENCE).unwrap_or_else(|e| panic!("in vain: {what}: {e}"))
}

fn sessions(sidecar: &Sidecar) -> f64 {
    Json::parse(&support::http(&sidecar.socket(), "GET", "/v1/info").1).unwrap().get("sessions").number()
}

fn dropped_clients() {
    let sidecar = Sidecar::new();
    let mut kept = Vec::new();
    for i in 0..20 {
        drop(sidecar.client().lock(i.to_string()).acquire().unwrap());
        if i % 10 == 0 {
            kept.push(sidecar.client().lock(format!("kept {i}")).acquire().unwrap());
            // and its client is dropped
        }
    }
    eventually("the others are gone", PATIENCE, || sessions(&sidecar) == 2.0);
    kept.iter().for_each(|held| held.check().unwrap());
    drop(kept);
    eventually("all are gone", PATIENCE, || sessions(&sidecar) == 0.0);
}

/// A runtime's thread goes on while a session is opened, and what is dropped meanwhile leaves nothing behind.
fn opened_beside() {
    let sidecar = Sidecar::new();
    let client = sidecar.client();
    sidecar.freeze();
    let mut asked = client.lock("r").into_future();
    let quickest = (0..3).map(|_| {
        let began = std::time::Instant::now();
        assert!(block_on(&mut asked, NOW).is_none());
        began.elapsed()
    });
    let quickest = quickest.min().unwrap(); // the machine may be busy
    assert!(quickest < Duration::from_secs(3), "a poll took {quickest:?}");
    sidecar.thaw();
    let held = block_on(asked, PATIENCE).expect("it is opened").unwrap();
    held.release().unwrap();
    client.close();
    assert_eq!(kind(block_on(client.lock("r").into_future(), PATIENCE).unwrap()), Kind::SessionClosed);
    drop(client);

    let client = sidecar.client();
    sidecar.freeze();
    let mut dropped = client.lock("r").into_future();
    assert!(block_on(&mut dropped, NOW).is_none());
    drop(dropped);
    drop(client);
    sidecar.thaw();
    eventually("nothing is left", PATIENCE, || sessions(&sidecar) == 0.0 && sidecar.lock("r").0.is_empty());
    let nowhere = Client::builder().socket("/nowhere/s").build();
    assert_eq!(kind(block_on(nowhere.lock("r").into_future(), PATIENCE).unwrap()), Kind::NoSidecar);
}

/// More than the socket has room for.
const MANY: usize = 600;

fn unread() {
    let sidecar = Sidecar::with("embedded:", &[("ttl", "60s")]);
    let client = sidecar.client();
    let held = client.lock("r").acquire().unwrap();
    sidecar.freeze();
    let asks = client.clone();
    in_time("requests that are not read end", move || {
        let name = |i, length| format!("{i}{}", "x".repeat(length));
        let all: Vec<_> = (0..MANY).map(|i| asks.lock(name(i, 500)).wait(Duration::from_millis(100)).begin().unwrap()).collect();
        all.into_iter().for_each(|asked| assert_eq!(kind(asked.wait()), Kind::SidecarSilent));
        let some = |i| asks.lock(name(i, 5000)).begin();
        assert_eq!(kind((0..10 * MANY).map(some).find(Result::is_err).unwrap()), Kind::SidecarSilent, "not for ever");
    });
    sidecar.thaw();
    eventually("all is carried out", PATIENCE, || client.lock("other").wait(PATIENCE).acquire().is_ok());
    held.check().unwrap();
    assert_eq!((sidecar.lock("r").0.len(), sessions(&sidecar)), (1, 1.0));
}

/// A task that does at once what it is woken for.
struct Task<F: FnOnce() + Send>(Mutex<Option<F>>);

impl<F: FnOnce() + Send + 'static> Task<F> {
    fn polls<T: Future + Unpin>(then: F, future: &mut T) {
        let waker = Arc::new(Task(Mutex::new(Some(then)))).into();
        assert!(Pin::new(future).poll(&mut Context::from_waker(&waker)).is_pending());
    }
}

impl<F: FnOnce() + Send + 'static> Wake for Task<F> {
    fn wake(self: Arc<Self>) {
        let then = self.0.lock().unwrap().take();
        then.into_iter().for_each(|then| then());
    }
}

fn woken() {
    let sidecar = Sidecar::new();
    let client = sidecar.client();
    let held = client.lock("r").acquire().unwrap();
    let (mut first, second) = (client.lock("r").begin().unwrap(), client.lock("r").begin().unwrap());
    Task::polls(move || drop(second), &mut first); // which asks the session
    let (told, hears) = mpsc::channel();
    let (held, first) = in_time("a task that is dropped when it is woken", move || {
        held.release().unwrap();
        (held, first.wait().unwrap())
    });
    let mut loss = first.until_lost();
    Task::polls(move || told.send(held.lost().is_none()).unwrap(), &mut loss);
    support::http(&sidecar.socket(), "DELETE", "/v1/locks/r?grace=0s");
    assert!(hears.recv_timeout(PATIENCE).unwrap(), "the lost one is another one");

    let other = client.lock("other").acquire().unwrap();
    let mut waits = client.lock("other").begin().unwrap();
    let (said, hears) = mpsc::channel();
    let panics = move || {
        said.send(()).unwrap();
        panic!("this panic is a part of the test");
    };
    Task::polls(panics, &mut waits);
    let _ = thread::spawn(move || drop(other)).join(); // the thread that reads carries it out, or this one, which is about to have the state next
    hears.recv_timeout(PATIENCE).unwrap();
    let other = client.clone();
    in_time("a panic where the news are read ends the session, and nobody waits in vain", move || {
        eventually("it has ended", PATIENCE, || other.lock("r").wait(PATIENCE).acquire().is_ok());
    });
}

/// A task of which the test sees whether somebody still has it.
struct Idle;

impl Wake for Idle {
    fn wake(self: Arc<Self>) {}
}

fn forgotten() {
    let sidecar = Sidecar::new();
    let held = sidecar.client().lock("r").acquire().unwrap();
    let task = Arc::new(Idle);
    let mut stays = held.until_lost();
    let (told, hears) = mpsc::channel();
    Task::polls(move || told.send(()).unwrap(), &mut stays);
    {
        let mut lost = held.until_lost();
        let waker = task.clone().into();
        for _ in 0..2 {
            assert!(Pin::new(&mut lost).poll(&mut Context::from_waker(&waker)).is_pending());
        }
    }
    assert_eq!(Arc::strong_count(&task), 1, "the lock has a task that has gone");
    sidecar.client().force("r", None, NOW).unwrap();
    hears.recv_timeout(PATIENCE).unwrap(); // the other one is told
}

fn no_connections() {
    extern "C" {
        fn listen(fd: i32, backlog: i32) -> i32;
    }
    let path = std::env::temp_dir().join(format!("ls-{}-full", std::process::id()));
    let listener = UnixListener::bind(&path).unwrap();
    // SAFETY: it only changes how many may wait.
    assert_eq!(unsafe { listen(listener.as_raw_fd(), 0) }, 0);
    let _waits = UnixStream::connect(&path).unwrap();
    let client = Client::builder().socket(&path).build();
    let e = in_time("it says so at once", move || client.open().unwrap_err());
    assert!(e.kind() == Kind::NoSidecar && e.to_string().contains("frozen"), "{e}");
    std::fs::remove_file(path).unwrap();
}

fn dropped() {
    let sidecar = Sidecar::new();
    let client = sidecar.client();
    let held = client.lock("r").acquire().unwrap();
    let waits = client.lock("r").begin().unwrap();
    eventually("it waits", PATIENCE, || sidecar.lock("r").1.len() == 1);
    drop(waits);
    eventually("it waits no more", PATIENCE, || sidecar.lock("r").1.is_empty());
    let late = client.lock("r").begin().unwrap();
    drop(held);
    eventually("it has it", PATIENCE, || late.is_done());
    drop(late); // though nobody took it
    client.lock("r").wait(PATIENCE).acquire().unwrap();
}

fn futures() {
    let sidecar = Sidecar::new();
    let client = sidecar.client();
    let held = block_on(async { client.lock("r").await }, PATIENCE).unwrap().unwrap();
    let waits = client.lock("r").begin().unwrap();
    assert!(block_on(waits, Duration::from_millis(50)).is_none(), "it was dropped while it waited");
    eventually("it waits no more", PATIENCE, || sidecar.lock("r").1.is_empty());
    // As select! does it: the work, unless the lock is lost first.
    let force = sidecar.socket();
    thread::spawn(move || support::http(&force, "DELETE", "/v1/locks/r?grace=0s"));
    let mut lost = Box::pin(held.until_lost());
    let problem = block_on(
        std::future::poll_fn(|cx| match lost.as_mut().poll(cx) {
            Poll::Ready(problem) => Poll::Ready(problem),
            Poll::Pending => Poll::Pending,
        }),
        PATIENCE,
    );
    assert_eq!(problem.unwrap().lost_reason(), Some("FORCED"));
    let held = client.lock("r").wait(PATIENCE).acquire().unwrap();
    assert_eq!(block_on(held.release_async().unwrap(), PATIENCE).unwrap().unwrap(), 0);
    drop(client.lock("r").wait(PATIENCE).acquire().unwrap().release_async()); // sent all the same
    client.lock("r").wait(PATIENCE).acquire().unwrap();
}

fn threads() {
    let sidecar = Sidecar::new();
    let (client, number) = (sidecar.client(), Arc::new(AtomicU32::new(0)));
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..20 {
                    let _held = client.lock("r").acquire().unwrap();
                    let n = number.load(Ordering::Relaxed);
                    thread::yield_now();
                    number.store(n + 1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(number.load(Ordering::Relaxed), 160);
}

fn released() {
    let sidecar = Sidecar::new();
    let held = sidecar.client().lock("r").acquire().unwrap();
    held.check().unwrap();
    assert_eq!(held.release().unwrap(), 0);
    assert_eq!(kind(held.check()), Kind::NotHolder);
    assert_eq!(kind(held.release()), Kind::NotHolder);
    assert_eq!(kind(held.downgrade()), Kind::NotHolder);
    assert_eq!((held.valid_for(), held.lost().is_some()), (NOW, false));
}

fn once() {
    let sidecar = Sidecar::new();
    let client = sidecar.client();
    let attempt = || client.lock("k").wait(PATIENCE).once(Some(Duration::from_secs(60)), 3).acquire();
    drop(attempt().unwrap()); // says nothing: the outcome is unknown
    let second = attempt().unwrap();
    assert_eq!((second.attempt(), second.previous().unwrap().state.as_str()), (Some(2), "UNKNOWN"));
    second.failed("no paper").unwrap();
    let third = attempt().unwrap();
    let previous = third.previous().unwrap();
    assert_eq!((previous.state.as_str(), previous.note.as_str(), previous.attempt), ("FAILED", "no paper", 2));
    third.succeeded("").unwrap();
    assert_eq!(kind(third.release()), Kind::NotHolder);
    let e = attempt().unwrap_err();
    assert_eq!((e.kind(), e.metadata("attempt")), (Kind::AlreadyDone, Some("3")));
    client.lock("other").once(None, 1).acquire().unwrap().failed("").unwrap();
    assert_eq!(kind(client.lock("other").once(None, 1).acquire()), Kind::AttemptsExhausted);
    let outcomes = |states: &[&str]| client.outcomes("", states).map(|o| o.map(|o| (o.resource, o.state))).collect::<Result<Vec<_>, _>>().unwrap();
    assert_eq!(outcomes(&[]), [("k".into(), "SUCCEEDED".into()), ("other".into(), "FAILED".into())]);
    assert_eq!(outcomes(&["FAILED", "UNKNOWN"]), [("other".into(), "FAILED".into())]);
    let forgotten = client.reset_outcome("other").unwrap().unwrap();
    assert_eq!((forgotten.attempt, forgotten.pid), (1, std::process::id()));
    assert!(client.reset_outcome("other").unwrap().is_none());
    assert_eq!(client.lock("other").once(None, 1).acquire().unwrap().attempt(), Some(1));
}

fn permits() {
    let sidecar = Sidecar::new();
    let client = sidecar.client();
    let (one, two) = (client.lock("r").limit(2).acquire().unwrap(), client.lock("r").limit(2).acquire().unwrap());
    assert_eq!((one.slot(), two.slot(), two.mode().as_str()), (Some(0), Some(1), "PERMIT"));
    assert_eq!(kind(client.lock("r").limit(2).wait(NOW).acquire()), Kind::LockHeld);
    let both = client.lock_all(["b", "a"]).wait(NOW).acquire().unwrap();
    assert_eq!(both.parts().iter().map(|p| p.resource.clone()).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(both.resource(), "a, b");
    assert_eq!(kind(client.lock("a").wait(NOW).acquire()), Kind::LockHeld);
    let short = client.lock("s").max_hold(Duration::from_millis(500)).acquire().unwrap();
    short.extend(Duration::from_secs(3600)).unwrap();
    assert!(short.valid_for() > Duration::from_millis(500), "valid for {:?}", short.valid_for());
    let long = client.lock("t").acquire().unwrap();
    long.extend(Duration::from_millis(100)).unwrap();
    assert_eq!(long.wait_lost(PATIENCE).unwrap().lost_reason(), Some("MAX_HOLD"));
}

/// The sidecar sends a grant when its client reads, and its `max_hold` runs before.
fn late() {
    const LATE: &str =
        r#""granted":{"lockId":"l","resource":"r","mode":"EXCLUSIVE","fence":"7","validFor":"900s","count":1,"countedAt":"6s","endsIn":"55s"}"#;
    const EXTENDED: &str =
        r#""extended":{"lockId":"l","resource":"r","mode":"EXCLUSIVE","fence":"7","validFor":"900s","count":1,"countedAt":"11s","endsIn":"95s"}"#;
    const OVER: &str =
        r#""granted":{"lockId":"over","resource":"s","mode":"EXCLUSIVE","fence":"8","validFor":"900s","count":1,"countedAt":"1s","endsIn":"0s"}"#;
    let client = scripted(&[OPENED, LATE, EXTENDED, OVER]).build();
    let minute = Duration::from_secs(60);
    let held = client.lock("r").max_hold(minute).acquire().unwrap();
    assert!(held.valid_for() > NOW && held.valid_for() <= minute, "valid for {:?}", held.valid_for()); // as if it had been counted in time
    held.extend(Duration::from_secs(100)).unwrap();
    assert!(held.valid_for() > minute && held.valid_for() <= Duration::from_secs(105), "valid for {:?}", held.valid_for());
    let over = client.lock("s").max_hold(minute).acquire().unwrap();
    assert_eq!(over.check().unwrap_err().lost_reason(), Some("MAX_HOLD"));
}

const OPENED: &str = r#""opened":{"sessionId":"s","leaseMargin":"1s","countedAt":"1s"}"#;
const GRANTED: &str = r#""granted":{"lockId":"l","resource":"r","mode":"EXCLUSIVE","fence":"7","validFor":"9s","count":1,"countedAt":"1s"}"#;

/// A sidecar that says what it is told to, for each request in turn. Nothing: it hangs up, and takes another
/// call. An event: that, and then a grant.
fn scripted(answers: &'static [&'static str]) -> Builder {
    static LAST: AtomicU32 = AtomicU32::new(0);
    let path = std::env::temp_dir().join(format!("ls-{}-scripted-{}", std::process::id(), LAST.fetch_add(1, Ordering::SeqCst)));
    let listener = UnixListener::bind(&path).unwrap();
    let client = Client::builder().socket(&path);
    thread::spawn(move || {
        let accept = || {
            let stream = listener.accept().unwrap().0;
            let lines = BufReader::new(stream.try_clone().unwrap()).lines();
            (stream, lines)
        };
        let (mut stream, mut lines) = accept();
        for answer in answers {
            let request = Json::parse(&lines.next().unwrap().unwrap()).unwrap();
            let id = request.get("requestId").text();
            if answer.is_empty() {
                drop((stream, lines));
                (stream, lines) = accept();
                continue;
            }
            let answer = if answer.starts_with(r#""event""#) {
                writeln!(stream, "{{{answer}}}").unwrap();
                GRANTED
            } else {
                answer
            };
            writeln!(stream, r#"{{"requestId":"{id}",{answer}}}"#).unwrap();
        }
        lines.next();
        std::fs::remove_file(path).unwrap();
    });
    client
}

fn losses() {
    let sidecar = Sidecar::new();
    let client = sidecar.client();
    let held = client.lock("r").acquire().unwrap();
    let (told, hears) = mpsc::channel();
    held.on_lost({
        let told = told.clone();
        move |problem| told.send(problem).unwrap()
    });
    support::http(&sidecar.socket(), "DELETE", "/v1/locks/r?grace=0s");
    assert_eq!(hears.recv_timeout(PATIENCE).unwrap().lost_reason(), Some("FORCED"));
    assert_eq!(kind(held.check()), Kind::LockLost);
    held.on_lost(move |problem| told.send(problem).unwrap()); // later too
    assert_eq!(hears.recv_timeout(PATIENCE).unwrap().lost_reason(), Some("FORCED"));

    let held = scripted(&[
        OPENED,
        GRANTED,
        r#""error":{"message":"forced","details":[{"domain":"locksidecar","reason":"LOCK_LOST","metadata":{"lost_reason":"FORCED"}}]}"#,
    ]);
    let held = held.build().lock("r").acquire().unwrap();
    assert_eq!(kind(held.release()), Kind::LockLost);
    assert_eq!(held.lost().unwrap().lost_reason(), Some("FORCED"), "the answer to the release is the first to tell");
}

/// How much this process may map: no thread can be started from where that is what it has.
mod memory {
    #[repr(C)]
    pub struct Limit {
        pub now: u64,
        pub most: u64,
    }

    extern "C" {
        fn getrlimit(resource: i32, limit: *mut Limit) -> i32;
        fn setrlimit(resource: i32, limit: *const Limit) -> i32;
    }

    const RLIMIT_AS: i32 = 9;

    pub fn limit() -> Limit {
        let mut limit = Limit { now: 0, most: 0 };
        // SAFETY: it is written to what is there for it.
        assert_eq!(unsafe { getrlimit(RLIMIT_AS, &mut limit) }, 0);
        limit
    }

    pub fn set(now: u64) {
        let limit = Limit { now, ..limit() };
        // SAFETY: it is only read.
        assert_eq!(unsafe { setrlimit(RLIMIT_AS, &limit) }, 0);
    }

    pub fn mapped() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
        size.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }
}

/// In a process of its own: the others here need threads.
fn no_threads() {
    let alone = Command::new(std::env::current_exe().unwrap()).arg(NO_THREADS).output().unwrap();
    assert!(alone.status.success(), "{}", String::from_utf8_lossy(&alone.stderr));
}

const NO_THREADS: &str = "no-threads";

fn alone_without_threads() {
    let sidecar = Sidecar::new();
    let client = sidecar.client();
    let (told, hears) = mpsc::channel();
    let held: Vec<_> = ["lost", "other"].iter().map(|name| client.lock(*name).acquire().unwrap()).collect();
    for held in &held {
        let told = told.clone();
        held.on_lost(move |problem| told.send(problem).unwrap());
    }
    let before = memory::limit().now;
    memory::set(memory::mapped() + (32 << 20));
    let (stay, stop) = mpsc::channel::<()>();
    let stop = Arc::new(Mutex::new(stop));
    let sleeper = || {
        let stop = stop.clone();
        thread::Builder::new().spawn(move || stop.lock().unwrap().recv())
    };
    let sleepers: Vec<_> = std::iter::from_fn(|| sleeper().ok()).collect();
    let forced = client.force("lost", None, NOW);
    eventually("it is lost", PATIENCE, || held[0].lost().is_some());
    let (other, early) = (held[1].check(), hears.try_recv());
    memory::set(before);
    assert_eq!(forced.unwrap(), [held[0].id()]);
    other.unwrap();
    assert!(early.is_err(), "there was a thread");
    assert_eq!(hears.recv_timeout(PATIENCE).unwrap().lost_reason(), Some("FORCED"));
    held[1].check().unwrap();
    drop(stay);
    sleepers.into_iter().for_each(|sleeper| drop(sleeper.join()));
}

fn early() {
    const LOST: &str = r#""event":{"lost":{"lockId":"l","resource":"r","fence":"7","reason":"FORCED","grace":"1s","message":"m","countedAt":"1s"}}"#;
    let held = scripted(&[OPENED, LOST]).build().lock("r").acquire().unwrap();
    assert_eq!(held.lost().unwrap().lost_reason(), Some("FORCED"));

    let client = scripted(&[OPENED, GRANTED, LOST]).build();
    let enter = || client.lock("r").owner("me").reentrant().acquire().unwrap();
    let (first, second) = (enter(), enter()); // the second re-enters what is lost
    assert_eq!(first.lost().unwrap().lost_reason(), Some("FORCED"));
    assert_eq!(second.lost().unwrap().lost_reason(), Some("FORCED"));
}

fn hangs_up() {
    assert_eq!(scripted(&["", "", OPENED, GRANTED]).build().lock("r").acquire().unwrap().fence(), 7);
    let client = scripted(&["", OPENED, GRANTED]).connect_timeout(NOW).build();
    assert_eq!(kind(client.lock("r").acquire()), Kind::SidecarGone);
}

fn closed_while_it_opens() {
    let path = std::env::temp_dir().join(format!("ls-{}-hangs-up", std::process::id()));
    let listener = UnixListener::bind(&path).unwrap();
    let (calls, called) = mpsc::channel();
    thread::spawn(move || listener.incoming().try_for_each(|call| calls.send(drop(call))));
    let client = Client::builder().socket(&path).connect_timeout(2 * PATIENCE).build();
    let asks = client.clone();
    let asked = thread::spawn(move || kind(asks.lock("r").acquire()));
    (0..3).for_each(|_| called.recv_timeout(PATIENCE).unwrap());
    assert!(!client.draining());
    in_time("it closes, and that ends the calls", move || {
        client.close();
        assert_eq!(asked.join().unwrap(), Kind::SessionClosed);
    });
    std::fs::remove_file(path).unwrap();
}

fn asked_again() {
    const LOCK: &str = r#""lock":{"resource":"r","holders":[],"waiters":[]}"#;
    assert_eq!(scripted(&["", "", LOCK]).build().get("r").unwrap().resource, "r");
    let force = scripted(&["", r#""forceReleased":{"lockIds":[]}"#]).build().force("r", None, NOW);
    assert_eq!(kind(force), Kind::SidecarGone, "it may have done it");
}

fn drains() {
    let sidecar = Sidecar::with("embedded:", &[("ttl", "2s"), ("drain", "60s")]);
    let (told, hears) = mpsc::channel();
    let client = Client::builder().socket(sidecar.socket()).on_draining(move |left| told.send(left).unwrap()).build();
    let held = client.lock("r").acquire().unwrap();
    assert!(!client.draining());
    sidecar.terminate();
    assert!(hears.recv_timeout(PATIENCE).unwrap() <= Duration::from_secs(60));
    assert!(client.draining());
    held.check().unwrap();
    held.release().unwrap();
}

fn shown() {
    let sidecar = Sidecar::new();
    let client = Client::builder().socket(sidecar.socket()).name("shop").metadata("pod", "p1").build();
    let held = client.lock("r").acquire().unwrap();
    let holder = sidecar.lock("r").0.remove(0);
    assert_eq!((holder.get("lockId").text(), holder.get("session").text()), (held.id(), "shop"));
    assert_eq!(holder.get("metadata").get("pod").text(), "p1");
    assert!(holder.get("owner").text().starts_with(&format!("pid {} ThreadId(", std::process::id())));
    assert_eq!(kind(client.lock("x".repeat(70_000)).acquire()), Kind::InvalidRequest);
    held.check().unwrap(); // and the session has gone on
}

fn looks() {
    let sidecar = Sidecar::new();
    let client = Client::builder().socket(sidecar.socket()).name("shop").metadata("leader", "10.0.0.7:9000").build();
    assert!(!client.leader("a/1").unwrap().leads && client.leader("a/1").unwrap().holder.is_none());
    let often = Duration::from_millis(100);
    let (mut changes, mut leaders) = (client.watch("a/", often).unwrap(), client.watch_leader("a/1", often).unwrap());
    let first = changes.next().unwrap().unwrap();
    assert!(first.kind == "SYNCED" && first.lock.is_none() && !leaders.next().unwrap().unwrap().leads);
    assert!(!client.is_locked("a/1").unwrap());
    let held = client.lock("a/1").acquire().unwrap();
    let waits = client.lock("a/1").begin().unwrap();
    eventually("it waits", PATIENCE, || client.get("a/1").unwrap().waiters.len() == 1);
    let state = client.get("a/1").unwrap();
    let holder = &state.holders[0];
    assert_eq!((holder.lock_id.as_str(), holder.fence, holder.session.as_str(), holder.pid), (held.id(), held.fence(), "shop", std::process::id()));
    assert_eq!(holder.metadata["leader"], "10.0.0.7:9000");
    assert!(client.is_locked("a/1").unwrap());
    let change = changes.next().unwrap().unwrap();
    assert_eq!((change.kind.as_str(), change.lock.unwrap().holders[0].lock_id.as_str()), ("CHANGED", held.id()));
    for leader in [leaders.next().unwrap().unwrap(), client.leader("a/1").unwrap()] {
        assert_eq!((leader.leads, leader.value.as_str(), leader.holder.unwrap().fence), (true, "10.0.0.7:9000", held.fence()));
    }
    drop(waits);
    assert_eq!(kind(client.force("a/1", Some("another"), NOW)), Kind::NotHolder);
    assert_eq!(kind(client.force("a/1", None, Duration::MAX)), Kind::InvalidRequest);
    assert_eq!(client.force("a/1", Some(held.id()), NOW).unwrap(), [held.id()]);
    while leaders.next().unwrap().unwrap().leads {} // it is told that nobody does

    let many: Vec<_> = (0..120).map(|i| client.lock(format!("many/{i:03}")).acquire().unwrap()).collect(); // more than a page
    let names: Vec<_> = client.list("many/").map(|l| l.unwrap().resource).collect();
    assert_eq!(names, many.iter().map(|h| h.resource().to_string()).collect::<Vec<_>>());
    let info = client.info().unwrap();
    assert!(info.ready && info.holds >= 120 && info.sessions == 1, "{info:?}");

    let mut refused = client.watch("", Duration::from_millis(1)).unwrap();
    assert_eq!(kind(refused.next().unwrap()), Kind::InvalidRequest);
    assert!(refused.next().is_none());
    assert_eq!(kind(client.get("x".repeat(70_000))), Kind::InvalidRequest);
    assert_eq!(kind(scripted(&[OPENED]).build().info()), Kind::SidecarGone, "what answers is something else");
    sidecar.freeze();
    assert_eq!(kind(client.info()), Kind::SidecarSilent);
}

fn detached() {
    let sidecar = Sidecar::new();
    let client = sidecar.client();
    let held = client.lock("r").detachable().acquire().unwrap();
    let handle = held.detach(Duration::from_secs(60)).unwrap();
    assert!(held.is_released() && held.lost().is_none());
    assert!(held.check().unwrap_err().to_string().contains("was detached"));
    assert!(!format!("{handle:?}").contains(handle.handle()), "a handle is a password");
    let fence = held.fence();
    drop(held);
    assert_eq!(kind(client.lock("r").wait(NOW).acquire()), Kind::LockHeld);
    assert!(client.get("r").unwrap().holders[0].detached);
    let again = block_on(async { client.attach(&handle).await }, PATIENCE).unwrap().unwrap();
    assert_eq!(again.fence(), fence);
    let other = block_on(again.detach_async(Duration::from_secs(60)).unwrap(), PATIENCE).unwrap().unwrap();
    assert_eq!(kind(client.attach(handle.handle()).acquire()), Kind::NotHolder);
    drop(client.attach(&other).acquire().unwrap()); // which releases it
    client.lock("r").wait(PATIENCE).acquire().unwrap();
    assert_eq!(kind(client.attach("").acquire()), Kind::InvalidRequest);
}

fn unwanted_attaches() {
    let sidecar = Sidecar::with("embedded:", &[("ttl", "1m")]);
    let client = sidecar.client();
    let detached = client.lock("r").detachable().acquire().unwrap().detach(Duration::from_secs(3600)).unwrap();
    sidecar.freeze();
    assert_eq!(kind(client.attach(&detached).acquire()), Kind::SidecarSilent);
    drop(client.attach(&detached).begin().unwrap());
    sidecar.thaw();
    let asked = client.attach(&detached).begin().unwrap();
    eventually("it is attached", PATIENCE, || asked.is_done());
    drop(asked);
    drop(client.lock("other").acquire().unwrap()); // what the session sent before is carried out
    assert_eq!(kind(client.lock("r").wait(NOW).acquire()), Kind::LockHeld);
    client.attach(&detached).acquire().unwrap().release().unwrap();
    client.lock("r").wait(NOW).acquire().unwrap();
}

fn unwanted_handles() {
    let sidecar = Sidecar::with("embedded:", &[("ttl", "1m")]);
    let client = sidecar.client();
    for how in ["silent", "dropped", "dropped when it was done"] {
        let held = client.lock(how).detachable().acquire().unwrap();
        let hour = Duration::from_secs(3600);
        if how != "dropped when it was done" {
            sidecar.freeze();
        }
        match how {
            "silent" => assert_eq!(kind(held.detach(hour)), Kind::SidecarSilent),
            "dropped" => drop(held.detach_async(hour).unwrap()),
            _ => {
                let detaching = held.detach_async(hour).unwrap();
                eventually("it is detached", PATIENCE, || held.is_released());
                drop(detaching);
            }
        }
        if how != "dropped when it was done" {
            assert_eq!(held.lost().unwrap().lost_reason(), Some("UNKNOWN"));
            sidecar.thaw();
        }
        eventually("it is free", PATIENCE, || sidecar.lock(how).0.is_empty());
    }
    const UNAVAILABLE: &str = r#""error":{"message":"no answer","details":[{"domain":"locksidecar","reason":"STORE_UNAVAILABLE","metadata":{}}]}"#;
    let held = scripted(&[OPENED, GRANTED, UNAVAILABLE]).build().lock("r").detachable().acquire().unwrap();
    assert_eq!(kind(held.detach(Duration::from_secs(60))), Kind::StoreUnavailable);
    assert_eq!(kind(held.check()), Kind::LockLost);
    const ATTACHED: &str =
        r#""granted":{"lockId":"l","resource":"r","mode":"EXCLUSIVE","fence":"7","validFor":"900s","endsIn":"5s","count":1,"countedAt":"1s"}"#;
    let held = scripted(&[OPENED, ATTACHED]).build().attach("h").acquire().unwrap();
    assert!(held.valid_for() > NOW && held.valid_for() <= Duration::from_secs(5), "valid for {:?}", held.valid_for());
}

fn nobody() {
    let path = std::env::temp_dir().join("no-such-socket");
    let e = Client::builder().socket(&path).build().lock("r").acquire().unwrap_err();
    let path = path.display();
    let want = format!("no sidecar answers at {path}: there is no such socket; start a sidecar with: locksidecar serve --socket {path}");
    assert_eq!((e.kind(), e.to_string()), (Kind::NoSidecar, want));
    let sidecar = Sidecar::new();
    let client = sidecar.client();
    let held = client.lock("r").acquire().unwrap();
    let waits = client.lock("r").begin().unwrap();
    client.close();
    assert_eq!(kind(waits.wait()), Kind::SessionClosed, "whatever the sidecar says of it at the end");
    assert_eq!(held.lost().unwrap().lost_reason(), Some("SESSION_CLOSED"));
    assert_eq!(kind(client.lock("r").acquire()), Kind::SessionClosed);
    client.open().unwrap();
    client.lock("r").wait(NOW).acquire().unwrap();
}

fn frozen() {
    let sidecar = Sidecar::new();
    let client = sidecar.client();
    let held = client.lock("r").acquire().unwrap();
    let waits = client.lock("r").begin().unwrap();
    eventually("it waits", PATIENCE, || sidecar.lock("r").1.len() == 1);
    sidecar.freeze();
    assert_eq!(kind(client.lock("r").wait(Duration::from_millis(100)).acquire()), Kind::SidecarSilent);
    assert_eq!(kind(waits.wait()), Kind::SidecarSilent);
    assert_eq!(held.lost().unwrap().lost_reason(), Some("SIDECAR_SILENT"));
    sidecar.thaw();
    eventually("nothing is left", PATIENCE, || held.release().is_err() && sidecar.lock("r").0.is_empty() && sidecar.lock("r").1.is_empty());
    client.lock("r").wait(PATIENCE).acquire().unwrap();
}

fn main() {
    match &std::env::args().collect::<Vec<_>>()[..] {
        [_, what, system, uid] if what == "find" => return find(system, uid.parse().unwrap()),
        [_, what] if what == NO_THREADS => return alone_without_threads(),
        _ => (),
    }
    tap(vec![
        test("what is dropped is released, or given up", dropped),
        test("clients that are dropped leave nothing", dropped_clients),
        test("a sidecar that does not read holds nobody up", unread),
        test("a session is opened beside the tasks of a runtime", opened_beside),
        test("what a waker does may ask the session", woken),
        test("a lock forgets the tasks that no longer wait for its loss", forgotten),
        test("a sidecar that takes no connections", no_connections),
        test("futures, with any runtime", futures),
        test("threads exclude each other", threads),
        test("after the release nobody relies on it", released),
        test("done once", once),
        test("permits, several at once, and a hold that is extended", permits),
        test("a grant that comes late ends with its max_hold, which ran before", late),
        test("a loss is told to who listens, and the answer to a release can tell it", losses),
        test("a loss for which no thread can be started is told later, and costs no other lock", no_threads),
        test("a loss may come before its grant", early),
        test("a sidecar that hangs up before it has answered is called again", hangs_up),
        test("a client that is closed while it opens its session", closed_while_it_opens),
        test("a look is asked again where the sidecar hangs up", asked_again),
        test("a sidecar that stops says so", drains),
        test("who holds what", shown),
        test("looks and watches", looks),
        test("a lock that is detached lives by its handle", detached),
        test("a handle that nobody waits for is released", unwanted_handles),
        test("an attach that is given up leaves the lock to the next one", unwanted_attaches),
        test("nobody answers", nobody),
        test("waits at a frozen sidecar end, and leave nothing behind", frozen),
    ]);
}

/// Prints where the socket is, for the cases of the rule.
fn find(system: &str, uid: u32) {
    extern "C" {
        fn setuid(uid: u32) -> i32;
    }
    // SAFETY: no other thread runs yet.
    assert_eq!(unsafe { setuid(uid) }, 0);
    match locksidecar::default_socket_in(system.as_ref()) {
        Ok(path) => println!("{}", path.display()),
        Err(e) => {
            eprintln!("{e}");
            std::process::exit(1);
        }
    }
}
