use crate::json::Json;
use std::collections::BTreeMap;
use std::fmt;

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $reason:literal,)*) => {
        /// What went wrong. The [reasons of the API](https://github.com/locksidecar/locksidecar/blob/main/docs/api.md#errors),
        /// and four that only a client can give.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Kind { $($(#[$doc])* $kind,)* }

        impl Kind {
            fn of(reason: &str) -> Kind {
                match reason { $($reason => Kind::$kind,)* _ => Kind::Internal }
            }

            /// The stable name in the API.
            pub fn reason(self) -> &'static str {
                match self { $(Kind::$kind => $reason,)* }
            }
        }
    };
}

kinds! {
    /// A try, and the lock is not free.
    LockHeld = "LOCK_HELD",
    /// The wait is over.
    WaitTimeout = "WAIT_TIMEOUT",
    /// The hold is over though it was not released.
    LockLost = "LOCK_LOST",
    /// It was released before.
    NotHolder = "NOT_HOLDER",
    /// SHARED cannot become EXCLUSIVE.
    UpgradeRefused = "UPGRADE_REFUSED",
    /// Owners wait for each other, and this one asked last. What it holds stays.
    Deadlock = "DEADLOCK",
    /// It has succeeded before.
    AlreadyDone = "ALREADY_DONE",
    /// It was tried as often as it may be.
    AttemptsExhausted = "ATTEMPTS_EXHAUSTED",
    /// The store cannot do that.
    Unsupported = "UNSUPPORTED",
    /// The sidecar answers, its store does not.
    StoreUnavailable = "STORE_UNAVAILABLE",
    /// Of sessions, holds, waiters, sizes.
    LimitExceeded = "LIMIT_EXCEEDED",
    /// A field is refused.
    InvalidRequest = "INVALID_REQUEST",
    /// By uid or gid.
    PermissionDenied = "PERMISSION_DENIED",
    /// The sidecar stops.
    Draining = "DRAINING",
    /// The request was given up.
    Cancelled = "CANCELLED",
    /// The session has ended.
    SessionNotFound = "SESSION_NOT_FOUND",
    /// Nothing answers at the socket. The message says how to start a sidecar.
    NoSidecar = "NO_SIDECAR",
    /// The connection broke.
    SidecarGone = "SIDECAR_GONE",
    /// The sidecar did not answer in time.
    SidecarSilent = "SIDECAR_SILENT",
    /// This process has closed the session.
    SessionClosed = "SESSION_CLOSED",
    /// A fault in the sidecar, or a reason that this client does not know.
    Internal = "INTERNAL",
}

/// What the sidecar refuses, or what the client finds out about it. Decide by [`kind`](Error::kind).
#[derive(Clone, Debug)]
pub struct Error {
    kind: Kind,
    message: String,
    metadata: BTreeMap<String, String>,
    missing: Vec<String>,
    /// The sidecar has ended the connection, as it does to make room: another one may do.
    pub(crate) hung_up: bool,
}

impl Error {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into(), metadata: BTreeMap::new(), missing: Vec::new(), hung_up: false }
    }

    pub(crate) fn incomplete(missing: Vec<String>) -> Error {
        let names = missing.join(", ");
        let mut e = Error::new(Kind::StoreUnavailable, format!("the list is not complete: these shards of the store do not answer: {names}"));
        e.missing = missing;
        e
    }

    pub(crate) fn lost(resource: &str, lock_id: &str, reason: &str, message: &str) -> Error {
        let mut e = Error::new(Kind::LockLost, format!("the lock on {resource:?} is lost: {message}"));
        for (key, value) in [("resource", resource), ("lock_id", lock_id), ("lost_reason", reason)] {
            e.metadata.insert(key.into(), value.into());
        }
        e
    }

    pub(crate) fn with(mut self, key: &str, value: impl Into<String>) -> Error {
        self.metadata.insert(key.into(), value.into());
        self
    }

    /// Reads an error of the API.
    pub(crate) fn explain(status: &Json) -> Error {
        let info = status.get("details").items().first().cloned().unwrap_or(Json::Null);
        Error {
            kind: Kind::of(info.get("reason").text()),
            message: status.get("message").text().into(),
            metadata: info.get("metadata").fields().iter().map(|(k, v)| (k.clone(), v.text().into())).collect(),
            missing: Vec::new(),
            hung_up: false,
        }
    }

    /// What it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Such as `holder_pid`; see the table of errors in the API.
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.metadata.get(key).map(String::as_str)
    }

    /// Of a lock that is lost: such as `FORCED`, `MAX_HOLD`, `SIDECAR_SILENT`.
    pub fn lost_reason(&self) -> Option<&str> {
        self.metadata("lost_reason")
    }

    /// At the end of a list: the shards of the store that did not answer. It lacks what they have.
    pub fn missing_shards(&self) -> &[String] {
        &self.missing
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
