package io.github.locksidecar;

import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;
import java.util.function.Consumer;

/** Cuts what was read into lines. */
final class Lines {
  private final ByteArrayOutputStream rest = new ByteArrayOutputStream(); // half a line

  /** Takes the first n bytes of an array, and gives each line that is whole, without its end. */
  void feed(byte[] data, int n, Consumer<String> line) {
    int start = 0;
    for (int i = 0; i < n; i++) {
      if (data[i] == '\n') {
        rest.write(data, start, i - start);
        String whole = rest.toString(StandardCharsets.UTF_8);
        rest.reset();
        start = i + 1;
        line.accept(whole);
      }
    }
    rest.write(data, start, n - start);
  }

  static byte[] of(String requestId, String kind, Json body) {
    String line = new Json().with("requestId", requestId).with(kind, body) + "\n";
    return line.getBytes(StandardCharsets.UTF_8);
  }
}
