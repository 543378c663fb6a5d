import com.sun.management.OperatingSystemMXBean;
import io.github.locksidecar.LockSidecar;
import java.lang.management.ManagementFactory;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Arrays;

/** Prints the median µs of a pair of acquire and release, and its processor time: Pairs client|client-hand|client-floor SOCKET PAIRS. */
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
        if (args[0].equals("client-hand")) {
          ask(channel, in, "{\"requestId\":\"0\",\"open\":{\"name\":\"pace\"}}\n", "opened");
          measure(() -> pairByHand(channel, in), pairs);
        } else {
          measure(() -> trips(channel, out, in), pairs);
        }
      }
    }
  }

  private static int number;

  /** The same by hand: the fewest steps in which this language can do it at the sidecar. */
  private static void pairByHand(SocketChannel channel, ByteBuffer in) throws Exception {
    String granted = ask(channel, in, "{\"requestId\":\"" + ++number + "\",\"acquire\":{\"resource\":\"pace\",\"owner\":\"hand\"}}\n", "granted");
    int at = granted.indexOf("\"lockId\":\"") + 10;
    String id = granted.substring(at, granted.indexOf('"', at));
    ask(channel, in, "{\"requestId\":\"" + ++number + "\",\"release\":{\"lockId\":\"" + id + "\"}}\n", "released");
  }

  /** What has come when a line with that word is there. News may come before it. */
  private static String ask(SocketChannel channel, ByteBuffer in, String line, String word) throws Exception {
    channel.write(ByteBuffer.wrap(line.getBytes(StandardCharsets.UTF_8)));
    in.clear();
    for (;;) {
      channel.read(in);
      String said = StandardCharsets.UTF_8.decode(in.duplicate().flip()).toString();
      if (said.endsWith("\n") && said.contains(word)) {
        return said;
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
