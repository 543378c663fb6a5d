package io.github.locksidecar;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

class JsonTest {
  @Test
  void itReads() {
    Json j =
        Json.parse(
            " {\"text\" : \"a\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00fc\\ud83d\\udd11ü\", \"fence\":\"1838309780432195584\",\n"
                + "\"n\":-7,\"d\":1.5e2,\"yes\":true,\"no\":false,\"none\":null,\"empty\":{},\"nothing\":[],"
                + "\"list\":[{\"a\":1},{\"a\":2}],\"args\":[\"x\",\"y\"],\"m\":{\"k\":\"v\"},\"wait\":\"0.5s\"}\r\n");
    assertEquals("a\"\\/\b\f\n\r\tü🔑ü", j.text("text"));
    assertEquals(1838309780432195584L, j.number("fence"));
    assertEquals(-7, j.number("n"));
    assertEquals(150, j.number("d"));
    assertTrue(j.flag("yes") && !j.flag("no") && !j.flag("none") && !j.has("none"));
    assertEquals(2, j.objects("list").get(1).number("a"));
    assertEquals(List.of("x", "y"), j.texts("args"));
    assertEquals(Map.of("k", "v"), j.textMap("m"));
    assertEquals(500_000_000, j.nanos("wait"));
    assertEquals("", j.text("other"));
    assertEquals(0, j.number("other"));
    assertNull(j.object("other"));
    assertEquals(List.of(), j.objects("nothing"));
    assertThrows(ClassCastException.class, () -> j.text("n"));
  }

  @ParameterizedTest
  @ValueSource(
      strings = {
        "", "[]", "1", "{", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{\"a\":1} x", "{\"a\":tru}", "{\"a\":\"\\x\"}",
        "{\"a\":\"\\u12g4\"}", "{\"a\":\"\\u12", "{\"a\":\"", "{\"a\":1-}", "{\"a\":[1 2]}", "{a:1}", "HTTP/1.1 400 Bad Request"
      })
  void itRefuses(String bad) {
    assertThrows(IllegalArgumentException.class, () -> Json.parse(bad));
  }

  @Test
  void itIsNotDeepWithoutEnd() {
    String deep = "{\"a\":" + "[".repeat(100_000) + "]".repeat(100_000) + "}";
    assertThrows(IllegalArgumentException.class, () -> Json.parse(deep));
  }

  @Test
  void itWritesWhatItReads() {
    Json j = new Json().with("a", "q\"\\\u0001\nü🔑").with("n", 7).with("t", true).with("nothing", null);
    j.with("l", Arrays.asList("x", null, new Json())).with("m", Json.of(Map.of("k", "v")));
    assertEquals("{\"a\":\"q\\\"\\\\\\u0001\\u000aü🔑\",\"n\":7,\"t\":true,\"l\":[\"x\",null,{}],\"m\":{\"k\":\"v\"}}", j.toString());
    assertEquals(j.toString(), Json.parse(j.toString()).toString());
  }

  @Test
  void durations() {
    assertEquals("0.500000000s", Times.format(Duration.ofMillis(500)));
    assertEquals("-1.500000000s", Times.format(Duration.ofMillis(-1500)));
    assertEquals("86400.000000001s", Times.format(Duration.ofDays(1).plusNanos(1)));
    for (long nanos : new long[] {0, 1, 999_999_999, 1_000_000_000, 7_988_356_304L, -1_500_000_000, -1}) {
      assertEquals(nanos, Times.parse(Times.format(Duration.ofNanos(nanos))));
    }
    assertEquals(5_000_000_000L, Times.parse("5s"));
    assertEquals(250_000_000L, Times.parse("0.25s"));
    assertEquals(Long.MAX_VALUE / 4, Times.nanos(Duration.ofDays(1_000_000)));
    for (String bad : List.of("", "s", "5", "5m", "x.5s", "1.0000000000s")) {
      assertThrows(RuntimeException.class, () -> Times.parse(bad), bad);
    }
  }

  @Test
  void linesComeInPieces() {
    Lines lines = new Lines();
    List<String> came = new ArrayList<>();
    byte[] all = "{\"a\":\"ü🔑\"}\n{}\n\n{\"b\"".getBytes(java.nio.charset.StandardCharsets.UTF_8);
    for (byte one : all) {
      lines.feed(new byte[] {one, '\n'}, 1, came::add);
    }
    assertEquals(List.of("{\"a\":\"ü🔑\"}", "{}", ""), came);
    lines.feed(":1}\nrest".getBytes(java.nio.charset.StandardCharsets.UTF_8), 4, came::add);
    assertEquals("{\"b\":1}", came.get(3));
    assertFalse(came.contains("rest"));
  }
}
