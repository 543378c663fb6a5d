import com.sun.management.OperatingSystemMXBean;
import io.github.locksidecar.LockSidecar;
import java.lang.management.ManagementFactory;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.nio.file.Path;
import java.util.Arrays;

/** Prints the median µs of a pair of acquire and release, and its processor time: Pairs client|client-floor SOCKET PAIRS. */
public final class Pairs {
  private interface Pair {
    void run() throws Exception;
  }

  public static void main(String[] args) throws Exception {
    Path socket = Path.of(args[1]);
    int pairs = Integer.parseInt(args[2]);
    if (args[0].equals("client")) {
      try (LockSidecar locks = LockSidecar.connect(socket)) {
        measure(() -> locks.lock("pace").acquire().release(), pairs);
      }
    } else {
      try (SocketChannel channel = SocketChannel.open(UnixDomainSocketAddress.of(socket))) {
        ByteBuffer out = ByteBuffer.allocateDirect(128);
        ByteBuffer in = ByteBuffer.allocateDirect(65536);
        measure(() -> trips(channel, out, in), pairs);
      }
    }
  }

  /** Two lines there and back over a bare socket. */
  private static void trips(SocketChannel channel, ByteBuffer out, ByteBuffer in) throws Exception {
    for (int i = 0; i < 2; i++) {
      out.clear();
      channel.write(out.put(127, (byte) '\n'));
      in.clear();
      while (in.position() < 128) {
        channel.read(in);
      }
    }
  }

  private static void measure(Pair pair, int pairs) throws Exception {
    for (int i = 0; i < 10 * pairs; i++) { // until it is compiled
      pair.run();
    }
    OperatingSystemMXBean system = ManagementFactory.getPlatformMXBean(OperatingSystemMXBean.class);
    long[] took = new long[pairs];
    long before = system.getProcessCpuTime();
    for (int i = 0; i < pairs; i++) {
      long began = System.nanoTime();
      pair.run();
      took[i] = System.nanoTime() - began;
    }
    long used = system.getProcessCpuTime() - before;
    Arrays.sort(took);
    System.out.println(took[pairs / 2] / 1e3 + " " + used / 1e3 / pairs);
  }
}
