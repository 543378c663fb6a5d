package io.github.locksidecar;

import java.io.IOException;
import java.net.ConnectException;
import java.net.SocketException;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.channels.SocketChannel;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.Map;
import java.util.function.UnaryOperator;

/** Where the sidecar is. */
final class SocketPath {
  private SocketPath() {}

  static final String ENV = "LOCKSIDECAR_SOCKET";

  private static final Path SYSTEM_DIR = Path.of("/run/locksidecar");
  private static final String NAME = "locksidecar.sock";

  /**
   * Where a sidecar and its clients meet when nobody says otherwise; docs/settings.md#socket has
   * the rule, which is the same on both sides.
   */
  static Path standard() {
    return standard(System::getenv, SYSTEM_DIR);
  }

  static Path standard(UnaryOperator<String> env, Path system) {
    String path = get(env, ENV);
    if (path != null) {
      return Path.of(path);
    }
    if (usable(system)) {
      return system.resolve(NAME);
    }
    String runtime = get(env, "XDG_RUNTIME_DIR");
    if (runtime != null) {
      return Path.of(runtime, "locksidecar", NAME);
    }
    String tmp = get(env, "TMPDIR"); // java.io.tmpdir ignores it
    try {
      int uid = (Integer) Files.getAttribute(Path.of("/proc/self"), "unix:uid");
      Path dir = Path.of(tmp == null ? "/tmp" : tmp, "locksidecar-" + uid);
      checkOwner(dir, uid);
      return dir.resolve(NAME);
    } catch (IOException e) {
      throw new SidecarUnavailableException("NO_SIDECAR", "find the sidecar's socket: " + e, e);
    }
  }

  private static String get(UnaryOperator<String> env, String name) {
    String v = env.apply(name);
    return v == null || v.isEmpty() ? null : v;
  }

  /** Tells whether there is a socket that can be connected to, or whether one can be made. */
  private static boolean usable(Path dir) {
    Path socket = dir.resolve(NAME);
    if (Files.exists(socket)) {
      return Files.isWritable(socket);
    }
    Path place = Files.exists(dir) ? dir : dir.getParent();
    return Files.isWritable(place) && Files.isExecutable(place);
  }

  /**
   * Refuses a directory in a place where anybody can make it, if somebody else did: a lock from
   * there would be worth nothing. One that is not there yet will be the user's own.
   */
  private static void checkOwner(Path dir, int uid) throws IOException {
    Map<String, Object> is;
    try {
      is = Files.readAttributes(dir, "unix:uid,mode,isDirectory", LinkOption.NOFOLLOW_LINKS);
    } catch (NoSuchFileException e) {
      return;
    }
    int mode = (Integer) is.get("mode") & 07777;
    if (!is.get("isDirectory").equals(true) || !is.get("uid").equals(uid) || (mode & 0022) != 0) {
      throw new IOException(
          dir + " is not a directory of this user's alone (uid " + is.get("uid") + ", mode "
              + Integer.toOctalString(mode) + "); set " + ENV);
    }
  }

  /**
   * Connects, without waiting for anything: a sidecar that is frozen, or very busy, may have as many
   * callers as its queue takes.
   *
   * @throws SidecarUnavailableException it cannot be done; the message says what to do
   */
  static SocketChannel connect(Path path) {
    SocketChannel c = null;
    try {
      c = SocketChannel.open(StandardProtocolFamily.UNIX);
      c.configureBlocking(false);
      if (c.connect(UnixDomainSocketAddress.of(path))) {
        return c;
      }
      close(c); // a Unix socket is connected at once, or is not: its queue of callers is full
      throw busy(path, null);
    } catch (IOException e) {
      close(c);
      throw c == null ? none(path, e.getMessage(), e, false) : explain(path, e);
    }
  }

  private static SidecarUnavailableException busy(Path path, IOException why) {
    return none(path, "it takes no connections; the sidecar may be frozen", why, true);
  }

  private static void close(SocketChannel c) {
    try {
      if (c != null) {
        c.close();
      }
    } catch (IOException e) {
      // the first problem is the one to tell
    }
  }

  /** What to do about a socket that cannot be connected to. */
  private static SidecarUnavailableException explain(Path path, IOException why) {
    String start = "with: locksidecar serve --socket " + path;
    String hint;
    if (!Files.exists(path)) {
      hint = "there is no such socket; start a sidecar " + start;
    } else if (!Files.isWritable(path)) {
      hint = "this user may not connect to it; see its mode and that of its directory";
    } else if (why instanceof ConnectException) {
      hint = "the sidecar that made it is gone; start one " + start;
    } else if (why instanceof SocketException) { // EAGAIN, in this JDK
      return busy(path, why);
    } else {
      hint = why.getMessage();
    }
    return none(path, hint, why, false);
  }

  private static SidecarUnavailableException none(Path path, String hint, Throwable why, boolean passes) {
    return new SidecarUnavailableException("NO_SIDECAR", "no sidecar answers at " + path + ": " + hint, why, passes);
  }
}
