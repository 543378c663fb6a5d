//! What becomes of an acquire when its connection ends, and of a hold when nobody reads, by a scripted sidecar.

use super::*;
use std::io::{BufRead, BufReader, Lines, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicU32, Ordering};

#[test]
fn an_acquire_that_was_not_sent_goes_to_a_new_session() {
    let path = std::env::temp_dir().join(format!("ls-{}-unit", std::process::id()));
    let listener = UnixListener::bind(&path).unwrap();
    let client = Client::builder().socket(&path).build();
    let server = thread::spawn(move || {
        let (first, second) = (serve(&listener, 1), serve(&listener, 2));
        drop((first, second)); // the first connection stays until here
    });
    client.open().unwrap();
    // The connection ends, and the thread that reads does not know yet.
    client.session().unwrap().hang_up(Shutdown::Write);
    assert_eq!(client.lock("r").acquire().unwrap().fence(), 7);
    server.join().unwrap();
    std::fs::remove_file(path).unwrap();
}

#[test]
fn an_acquire_that_queued_goes_to_a_new_session() {
    let path = std::env::temp_dir().join(format!("ls-{}-queued", std::process::id()));
    let listener = UnixListener::bind(&path).unwrap();
    let client = Client::builder().socket(&path).build();
    let server = thread::spawn(move || {
        let mut first = serve(&listener, 1);
        first.request(); // it waits here
        first.answer(r#""error":{"code":8,"message":"full","details":[{"reason":"LIMIT_EXCEEDED","metadata":{"limit":"waiters","max":"1"}}]}"#);
        drop(first); // the connection ends
        drop(serve(&listener, 2));
    });
    let first = client.lock("r").begin().unwrap();
    let second = client.lock("r").wait(Duration::from_secs(3600)).begin().unwrap();
    assert_eq!(first.wait().unwrap_err().kind(), Kind::SidecarGone);
    while !second.is_done() {
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(second.wait().unwrap().fence(), 7);
    server.join().unwrap();
    std::fs::remove_file(path).unwrap();
}

/// The same, and the new session takes its time: the thread that polls goes on.
#[test]
fn a_task_that_queued_does_not_wait_for_the_new_session() {
    struct Unpark(thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let path = std::env::temp_dir().join(format!("ls-{}-slow", std::process::id()));
    let listener = UnixListener::bind(&path).unwrap();
    let client = Client::builder().socket(&path).build();
    let (go, goes) = std::sync::mpsc::channel();
    let server = thread::spawn(move || {
        let mut first = serve(&listener, 1);
        first.request(); // it waits here
        first.answer(r#""error":{"code":8,"message":"full","details":[{"reason":"LIMIT_EXCEEDED","metadata":{"limit":"waiters","max":"1"}}]}"#);
        drop(first); // the connection ends
        goes.recv().unwrap();
        drop(serve(&listener, 2));
    });
    let first = client.lock("r").begin().unwrap();
    let mut second = client.lock("r").wait(Duration::from_secs(3600)).begin().unwrap();
    assert_eq!(first.wait().unwrap_err().kind(), Kind::SidecarGone);
    let waker = Arc::new(Unpark(thread::current())).into();
    let mut cx = Context::from_waker(&waker);
    for _ in 0..3 {
        assert!(Pin::new(&mut second).poll(&mut cx).is_pending());
    }
    go.send(()).unwrap();
    let held = loop {
        match Pin::new(&mut second).poll(&mut cx) {
            Poll::Ready(held) => break held.unwrap(),
            Poll::Pending => thread::park_timeout(Duration::from_secs(10)),
        }
    };
    assert_eq!(held.fence(), 7);
    server.join().unwrap();
    std::fs::remove_file(path).unwrap();
}

/// The thread that reads has no turn until the grant is over by the clock. Whoever asks about the hold reads first what has come.
fn stood_still(says: &[&str]) -> Result<()> {
    static LAST: AtomicU32 = AtomicU32::new(0);
    let path = std::env::temp_dir().join(format!("ls-{}-still{}", std::process::id(), LAST.fetch_add(1, Ordering::SeqCst)));
    let listener = UnixListener::bind(&path).unwrap();
    let client = Client::builder().socket(&path).build();
    let server = thread::spawn(move || {
        let mut peer = serve(&listener, 1);
        peer.answer(r#""granted":{"lockId":"l","resource":"r","mode":"EXCLUSIVE","fence":"7","validFor":"0.3s","count":1,"countedAt":"1s"}"#);
        peer
    });
    let held = client.lock("r").acquire().unwrap();
    let mut peer = server.join().unwrap();
    let session = client.session().unwrap();
    let reading = session.stop_reading();
    says.iter().for_each(|line| writeln!(peer.stream, r#"{{"event":{line}}}"#).unwrap());
    thread::sleep(Duration::from_millis(350));
    drop(reading);
    let checked = held.check();
    std::fs::remove_file(path).unwrap();
    checked
}

#[test]
fn what_stands_unread_is_no_silence() {
    let news = r#"{"lease":{"countedAt":"1.2s","validFor":"60s"}}"#;
    let lost = r#"{"lost":{"lockId":"l","resource":"r","reason":"FORCED","message":"by force","countedAt":"1.25s","grace":"0s"}}"#;
    let next = r#"{"lease":{"countedAt":"1.3s","validFor":"60s"}}"#; // of another lease
    for _ in 0..10 {
        stood_still(&[news]).unwrap();
    }
    let reason = |says: &[&str]| stood_still(says).unwrap_err().lost_reason().unwrap().to_string();
    assert_eq!(reason(&[]), "SIDECAR_SILENT");
    assert_eq!(reason(&[next]), "SIDECAR_SILENT");
    assert_eq!(reason(&[news, lost]), "FORCED");
    assert_eq!(reason(&[lost, news]), "FORCED");
}

struct Peer {
    lines: Lines<BufReader<UnixStream>>,
    stream: UnixStream,
}

impl Peer {
    fn request(&mut self) -> Json {
        Json::parse(&self.lines.next().unwrap().unwrap()).unwrap()
    }

    fn answer(&mut self, answer: &str) {
        let id = self.request().get("requestId").text().to_string();
        writeln!(self.stream, r#"{{"requestId":"{id}",{answer}}}"#).unwrap();
    }
}

/// Answers so many requests of the next connection, and gives what comes then.
fn serve(listener: &UnixListener, requests: usize) -> Peer {
    let stream = listener.accept().unwrap().0;
    let mut peer = Peer { lines: BufReader::new(stream.try_clone().unwrap()).lines(), stream };
    for line in [
        r#""opened":{"sessionId":"s","leaseMargin":"1s","countedAt":"1s"}"#,
        r#""granted":{"lockId":"l","resource":"r","mode":"EXCLUSIVE","fence":"7","validFor":"9s","count":1,"countedAt":"1s"}"#,
    ]
    .iter()
    .take(requests)
    {
        peer.answer(line);
    }
    peer
}
