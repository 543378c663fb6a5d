//! 1,000 threads that hold a lock each at the same time. Prints how many the sidecar counts.

use locksidecar::{Client, Result};
use std::sync::{Arc, Barrier};
use std::thread;

const CROWD: usize = 1000;

fn main() -> Result<()> {
    let sidecar = Client::new();
    let (all_hold, counted) = (Arc::new(Barrier::new(CROWD + 1)), Arc::new(Barrier::new(CROWD + 1)));
    let hold = |i| {
        let (sidecar, all_hold, counted) = (sidecar.clone(), all_hold.clone(), counted.clone());
        thread::spawn(move || {
            let held = sidecar.lock(format!("thread/{i}")).acquire()?;
            all_hold.wait();
            counted.wait();
            held.release().map(drop)
        })
    };
    let threads: Vec<_> = (0..CROWD).map(hold).collect();
    all_hold.wait();
    println!("{}", sidecar.info()?.holds);
    counted.wait();
    threads.into_iter().try_for_each(|thread| thread.join().expect("it does not panic"))
}
