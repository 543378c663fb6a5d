//! What the standard library has not: the boot-time clock, access(2), the user.

use crate::error::{Error, Kind};
use std::ffi::CString;
use std::io::ErrorKind;
use std::os::raw::{c_char, c_int, c_long, c_uint};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

#[repr(C)]
struct Timespec {
    seconds: c_long,
    nanoseconds: c_long,
}

extern "C" {
    fn clock_gettime(clock: c_int, time: *mut Timespec) -> c_int;
    fn access(path: *const c_char, mode: c_int) -> c_int;
    fn getuid() -> c_uint;
}

const CLOCK_BOOTTIME: c_int = 7;
const W_OK: c_int = 2;
const X_OK: c_int = 1;

/// Seconds of the boot time of this machine, which goes on while it is suspended and which nobody sets.
pub(crate) fn now() -> f64 {
    let mut t = Timespec { seconds: 0, nanoseconds: 0 };
    // SAFETY: it writes to the Timespec and nothing else, which is laid out as the C library has it.
    let failed = unsafe { clock_gettime(CLOCK_BOOTTIME, &mut t) };
    assert_eq!(failed, 0, "Linux has had CLOCK_BOOTTIME since 2.6.39");
    t.seconds as f64 + t.nanoseconds as f64 / 1e9
}

fn may(path: &Path, mode: c_int) -> bool {
    // SAFETY: it reads a string that ends with a zero.
    CString::new(path.as_os_str().as_bytes()).is_ok_and(|p| unsafe { access(p.as_ptr(), mode) } == 0)
}

const NAME: &str = "locksidecar.sock";

/// Where sidecar and clients meet when nobody says otherwise: the
/// [rule](https://github.com/locksidecar/locksidecar/blob/main/docs/settings.md#socket).
pub(crate) fn default_socket(system: &Path) -> Result<PathBuf, Error> {
    let var = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    if let Some(path) = var("LOCKSIDECAR_SOCKET") {
        return Ok(path);
    }
    if usable(system) {
        return Ok(system.join(NAME));
    }
    if let Some(runtime) = var("XDG_RUNTIME_DIR") {
        return Ok(runtime.join("locksidecar").join(NAME));
    }
    // SAFETY: it only gives a number.
    let uid = unsafe { getuid() };
    let dir = var("TMPDIR").unwrap_or_else(|| "/tmp".into()).join(format!("locksidecar-{uid}"));
    match dir.symlink_metadata() {
        Err(e) if e.kind() == ErrorKind::NotFound => {} // it will be this user's own
        Err(e) => return Err(Error::new(Kind::NoSidecar, format!("find the socket: {}: {e}", dir.display()))),
        Ok(is) if is.is_dir() && is.uid() == uid && is.mode() & 0o022 == 0 => {}
        Ok(is) => {
            return Err(Error::new(
                Kind::NoSidecar,
                format!(
                    "find the socket: {} is not a directory of this user's alone (uid {}, mode {:o}); set LOCKSIDECAR_SOCKET",
                    dir.display(),
                    is.uid(),
                    is.mode() & 0o7777
                ),
            ))
        }
    }
    Ok(dir.join(NAME))
}

/// Whether the socket there can be connected to, or whether one can be made.
fn usable(dir: &Path) -> bool {
    let socket = dir.join(NAME);
    if socket.exists() {
        return may(&socket, W_OK);
    }
    let place = if dir.exists() { dir } else { dir.parent().unwrap_or(dir) };
    place.is_dir() && may(place, W_OK | X_OK)
}

/// Connects, or says why that cannot be done.
pub(crate) fn connect(path: &Path) -> Result<UnixStream, Error> {
    UnixStream::connect(path).map_err(|e| {
        let start = format!("locksidecar serve --socket {}", path.display());
        let hint = match e.kind() {
            ErrorKind::NotFound => format!("there is no such socket; start a sidecar with: {start}"),
            ErrorKind::ConnectionRefused => format!("the sidecar that made it is gone; start one with: {start}"),
            ErrorKind::PermissionDenied => "this user may not connect to it; see its mode and that of its directory".into(),
            _ => e.to_string(),
        };
        Error::new(Kind::NoSidecar, format!("no sidecar answers at {}: {hint}", path.display()))
    })
}
