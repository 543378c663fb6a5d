//! What the standard library has not: the boot-time clock, access(2), the user.

use crate::error::{Error, Kind};
use std::ffi::CString;
use std::io;
use std::io::ErrorKind;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::raw::{c_char, c_int, c_long, c_short, c_uint, c_ulong};
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
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    #[link_name = "connect"]
    fn connect_to(fd: c_int, address: *const Address, size: c_uint) -> c_int;
    fn send(fd: c_int, data: *const u8, size: usize, flags: c_int) -> isize;
    fn recv(fd: c_int, data: *mut u8, size: usize, flags: c_int) -> isize;
    fn poll(files: *mut PollFile, number: c_ulong, milliseconds: c_int) -> c_int;
}

/// sockaddr_un
#[repr(C)]
struct Address {
    family: u16,
    path: [u8; 108],
}

/// pollfd
#[repr(C)]
struct PollFile {
    fd: c_int,
    events: c_short,
    came: c_short,
}

const AF_UNIX: c_int = 1;
const SOCK_STREAM_NONBLOCK_CLOEXEC: c_int = 0o2_004_001;
const MSG_DONTWAIT_NOSIGNAL: c_int = 0x4040;
const MSG_DONTWAIT: c_int = 0x40;
const POLLIN: c_short = 1;
const POLLOUT: c_short = 4;

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

/// Does not wait where the sidecar takes no connections: UnixStream::connect would, for as long as it takes.
fn connect_now(path: &Path) -> io::Result<UnixStream> {
    let name = path.as_os_str().as_bytes();
    let mut address = Address { family: AF_UNIX as u16, path: [0; 108] };
    if name.len() >= address.path.len() || name.contains(&0) {
        return Err(io::Error::new(ErrorKind::InvalidInput, "the path is longer than the 107 bytes that are possible"));
    }
    address.path[..name.len()].copy_from_slice(name);
    // SAFETY: what it gives is ours alone, and closed by the UnixStream.
    let stream = unsafe {
        let fd = socket(AF_UNIX, SOCK_STREAM_NONBLOCK_CLOEXEC, 0);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        UnixStream::from_raw_fd(fd)
    };
    // SAFETY: the address is laid out as the C library has it, and as large as it says.
    if unsafe { connect_to(stream.as_raw_fd(), &address, std::mem::size_of::<Address>() as c_uint) } != 0 {
        return Err(io::Error::last_os_error());
    }
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Sends as much as there is room for.
pub(crate) fn send_now(stream: &UnixStream, data: &[u8]) -> io::Result<usize> {
    // SAFETY: it reads the slice and nothing else.
    let sent = unsafe { send(stream.as_raw_fd(), data.as_ptr(), data.len(), MSG_DONTWAIT_NOSIGNAL) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Receives what has come, without waiting.
pub(crate) fn receive_now(stream: &UnixStream, data: &mut [u8]) -> io::Result<usize> {
    // SAFETY: it writes to the slice and nothing else.
    let came = unsafe { recv(stream.as_raw_fd(), data.as_mut_ptr(), data.len(), MSG_DONTWAIT) };
    usize::try_from(came).map_err(|_| io::Error::last_os_error())
}

/// Waits until there is room to send, or nothing can be sent any more.
pub(crate) fn wait_for_room(stream: &UnixStream) {
    wait_for(stream, POLLOUT, -1);
}

/// Waits until something has come, or for so many seconds.
pub(crate) fn wait_for_news(stream: &UnixStream, seconds: f64) {
    wait_for(stream, POLLIN, (seconds * 1e3).ceil() as c_int);
}

fn wait_for(stream: &UnixStream, events: c_short, milliseconds: c_int) {
    let mut file = PollFile { fd: stream.as_raw_fd(), events, came: 0 };
    // SAFETY: it writes to the one PollFile and nothing else, which is laid out as the C library has it.
    unsafe { poll(&mut file, 1, milliseconds) };
}

/// Connects, or says why that cannot be done.
pub(crate) fn connect(path: &Path) -> Result<UnixStream, Error> {
    connect_now(path).map_err(|e| {
        let start = format!("locksidecar serve --socket {}", path.display());
        let hint = match e.kind() {
            ErrorKind::NotFound => format!("there is no such socket; start a sidecar with: {start}"),
            ErrorKind::ConnectionRefused => format!("the sidecar that made it is gone; start one with: {start}"),
            ErrorKind::WouldBlock => "it takes no connections; it may be frozen".into(),
            ErrorKind::PermissionDenied => "this user may not connect to it; see its mode and that of its directory".into(),
            _ => e.to_string(),
        };
        Error::new(Kind::NoSidecar, format!("no sidecar answers at {}: {hint}", path.display()))
    })
}
