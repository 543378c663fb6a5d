package io.github.locksidecar;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.channels.ServerSocketChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class SocketPathTest {
  @TempDir Path dir;

  @Test
  void theRule() throws IOException {
    Path nowhere = dir.resolve("no/such");
    int uid = (Integer) Files.getAttribute(dir, "unix:uid");
    Map<String, String> env = Map.of("LOCKSIDECAR_SOCKET", "/a/b", "XDG_RUNTIME_DIR", "/run/user/1", "TMPDIR", dir.toString());
    assertEquals(Path.of("/a/b"), SocketPath.standard(env::get, dir));

    env = Map.of("LOCKSIDECAR_SOCKET", "", "XDG_RUNTIME_DIR", "/run/user/1");
    assertEquals(dir.resolve("locksidecar.sock"), SocketPath.standard(env::get, dir), "it can be made there");
    assertEquals(dir.resolve("new/locksidecar.sock"), SocketPath.standard(env::get, dir.resolve("new")));
    assertEquals(Path.of("/run/user/1/locksidecar/locksidecar.sock"), SocketPath.standard(env::get, nowhere));

    Map<String, String> tmp = Map.of("TMPDIR", dir.toString());
    Path own = dir.resolve("locksidecar-" + uid);
    assertEquals(own.resolve("locksidecar.sock"), SocketPath.standard(tmp::get, nowhere));
    Files.createDirectory(own, PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rwx------")));
    assertEquals(own.resolve("locksidecar.sock"), SocketPath.standard(tmp::get, nowhere));
    Files.setPosixFilePermissions(own, PosixFilePermissions.fromString("rwxrwxrwx"));
    SidecarException e = assertThrows(SidecarUnavailableException.class, () -> SocketPath.standard(tmp::get, nowhere));
    assertTrue(e.getMessage().contains(own.toString()) && e.getMessage().contains("LOCKSIDECAR_SOCKET"), e.getMessage());
  }

  @Test
  void nothingIsThere() {
    Path socket = dir.resolve("s");
    SidecarException e = assertThrows(SidecarUnavailableException.class, () -> LockSidecar.connect(socket).open());
    assertEquals("NO_SIDECAR", e.reason());
    assertEquals(
        "no sidecar answers at " + socket + ": there is no such socket; start a sidecar with: locksidecar serve --socket " + socket,
        e.getMessage());
  }

  @Test
  void itsSidecarIsGone() throws IOException {
    Path socket = dir.resolve("s");
    try (ServerSocketChannel s = ServerSocketChannel.open(StandardProtocolFamily.UNIX)) {
      s.bind(UnixDomainSocketAddress.of(socket));
    }
    SidecarException e = assertThrows(SidecarUnavailableException.class, () -> LockSidecar.connect(socket).open());
    assertTrue(e.getMessage().contains("the sidecar that made it is gone"), e.getMessage());
  }

  @Test
  void itIsNoSidecar() throws IOException {
    Path socket = dir.resolve("f");
    Files.createFile(socket);
    SidecarException e = assertThrows(SidecarUnavailableException.class, () -> LockSidecar.connect(socket).open());
    assertTrue(e.getMessage().contains(socket.toString()), e.getMessage());
  }
}
