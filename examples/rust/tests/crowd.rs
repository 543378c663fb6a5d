//! More acquires at a time than the sidecar takes of one session.

mod support;

use locksidecar::{Acquire, Client, Held, Kind};
use std::time::Duration;
use support::{block_on, eventually, tap, test, Sidecar, PATIENCE};

/// A sidecar that takes so many waiters, a client, and the lock that all wait for.
fn crowded(most: &str) -> (Sidecar, Client, Held) {
    let sidecar = Sidecar::with("embedded:", &[("ttl", "60s"), ("max-waiters", most)]);
    let client = sidecar.client();
    let held = client.lock("a").acquire().unwrap();
    (sidecar, client, held)
}

fn waiters(client: &Client, n: u32) {
    // Beside 1,500 threads, on a busy machine, the sidecar may not answer in time.
    eventually("they wait", PATIENCE, || matches!(client.info(), Ok(info) if info.waiters == n));
}

/// Each of them gets the lock, which they share.
fn served(all: Vec<Acquire>) {
    for acquire in all {
        block_on(acquire, PATIENCE).expect("it is not granted").unwrap().release().unwrap();
    }
}

fn many() {
    let (_sidecar, client, held) = crowded("1000");
    let all = (0..1500).map(|_| client.lock("a").shared().begin().unwrap()).collect();
    waiters(&client, 800);
    client.lock("b").acquire().unwrap(); // nobody asks for it: it gets through
    held.release().unwrap();
    served(all);
}

fn fewer() {
    let (_sidecar, client, held) = crowded("3");
    let mut all: Vec<Acquire> = (0..20).map(|_| client.lock("a").shared().begin().unwrap()).collect();
    waiters(&client, 3);
    all.extend((0..2).map(|_| client.lock("a").shared().wait(Duration::from_secs(3600)).begin().unwrap()));
    let absurd = client.lock("a").shared().wait(Duration::MAX - Duration::from_secs(1)).begin().unwrap();
    all.push(client.lock("a").shared().wait(Duration::MAX).begin().unwrap()); // whatever it takes
    held.release().unwrap();
    served(all);
    assert_eq!(absurd.wait().unwrap_err().kind(), Kind::InvalidRequest);
}

fn given_up() {
    let (sidecar, client, held) = crowded("2");
    let all = (0..2).map(|_| client.lock("a").shared().begin().unwrap()).collect();
    waiters(&client, 2);
    drop(client.lock("a").shared().begin().unwrap());
    let waits = || client.lock("a").shared().wait(Duration::from_millis(100));
    for error in [waits().acquire().unwrap_err(), block_on(async { waits().await }, PATIENCE).unwrap().unwrap_err()] {
        assert_eq!(error.kind(), Kind::WaitTimeout);
        assert_eq!(error.metadata("resource"), Some("a"));
    }
    let error = client.lock("b").wait(Duration::ZERO).acquire().unwrap_err();
    assert_eq!((error.kind(), error.metadata("max")), (Kind::LimitExceeded, Some("2")));
    held.release().unwrap();
    served(all);
    eventually("nothing is left", PATIENCE, || sidecar.lock("a").0.is_empty() && sidecar.lock("a").1.is_empty());
}

fn ends() {
    let (_sidecar, client, held) = crowded("1");
    let all: Vec<Acquire> = (0..3).map(|_| client.lock("a").shared().begin().unwrap()).collect();
    waiters(&client, 1);
    client.close();
    for acquire in all {
        assert_eq!(acquire.wait().unwrap_err().kind(), Kind::SessionClosed);
    }
    assert!(held.check().is_err());
}

/// More answers than one read brings, or the socket has room for, stand unread when this process goes on.
fn stood_still() {
    let (_sidecar, client, held) = crowded("1000");
    let all: Vec<Acquire> = (0..500).map(|_| client.lock("a").wait(Duration::from_secs(1)).begin().unwrap()).collect();
    waiters(&client, 500);
    let pid = std::process::id();
    let stop = format!("kill -STOP {pid}; sleep 8; kill -CONT {pid}");
    assert!(std::process::Command::new("sh").args(["-c", &stop]).status().unwrap().success());
    for acquire in all {
        assert_ne!(acquire.wait().unwrap_err().kind(), Kind::SidecarSilent);
    }
    held.release().unwrap();
}

fn main() {
    tap(vec![
        test("1,500 that wait on one session are served", many),
        test("a sidecar that takes fewer", fewer),
        test("what queues in the client is given up, and leaves nothing", given_up),
        test("the end of the session ends what queues in the client", ends),
        test("answers that a crowd finds unread, after it has stood still, are answers", stood_still),
    ]);
}
