//! Opening a session in async code.

use crate::state::{lock, start};
use crate::{Client, Result};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread;

/// Opens a session in a thread of its own: that takes seconds where the sidecar is frozen, or short of connections, and the
/// thread of a runtime has others to serve.
pub(crate) struct Opening(Arc<Mutex<Opened>>);

#[derive(Default)]
struct Opened {
    result: Option<Result<()>>,
    waker: Option<Waker>,
}

impl Opening {
    pub fn new(client: &Client) -> Opening {
        let (here, client) = (Arc::<Mutex<Opened>>::default(), client.clone());
        let there = here.clone();
        let work = move || {
            let result = client.session().map(drop);
            drop(client); // nobody else may have it any more
            let mut opened = lock(&there);
            opened.result = Some(result);
            let waker = opened.waker.take();
            drop(opened);
            waker.into_iter().for_each(Waker::wake);
        };
        if let Some(work) = start(thread::Builder::new().name("locksidecar".into()), Box::new(work)) {
            work(); // there is no thread to be had
        }
        Opening(here)
    }
}

impl Future for Opening {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let waker = cx.waker().clone(); // code of the app, as the drop of the one before
        let mut opened = lock(&self.0);
        if let Some(result) = opened.result.take() {
            return Poll::Ready(result);
        }
        let before = opened.waker.replace(waker);
        drop(opened);
        drop(before);
        Poll::Pending
    }
}
