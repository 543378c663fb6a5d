//! Prints what is held, and which shards of the store do not answer: to a list, and to a watch.

use locksidecar::{Client, Result};
use std::time::Duration;

fn main() -> Result<()> {
    let sidecar = Client::new();
    for lock in sidecar.list("") {
        match lock {
            Ok(lock) => println!("{}", lock.resource),
            Err(e) if !e.missing_shards().is_empty() => println!("lacks {}", e.missing_shards().join(" ")),
            Err(e) => return Err(e),
        }
    }
    for change in sidecar.watch("", Duration::from_secs(1))?.take(1) {
        let change = change?;
        println!("{} {}", change.kind, change.missing_shards.join(" "));
    }
    Ok(())
}
