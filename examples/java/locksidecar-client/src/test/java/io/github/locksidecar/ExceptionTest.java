package io.github.locksidecar;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.ObjectInputStream;
import java.io.ObjectOutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

class ExceptionTest {
  /** The reasons as the API's page has them. */
  static List<String> reasons() throws IOException {
    String page = Files.readString(Path.of("../../../docs/api.md"));
    String table = page.substring(page.indexOf("## Errors"), page.indexOf("## Limits"));
    List<String> all = new ArrayList<>();
    for (Matcher m = Pattern.compile("(?m)^\\| `([A-Z_]+)` \\| `[A-Z_]+` \\d").matcher(table); m.find(); ) {
      all.add(m.group(1));
    }
    assertTrue(all.size() > 15, all.toString());
    return all;
  }

  /** INTERNAL is any fault, and NO_SUCH_CALL is HTTP's. */
  @ParameterizedTest
  @MethodSource("reasons")
  void eachReasonHasAClass(String reason) {
    SidecarException e = SidecarException.of(reason, "m", Map.of("k", "v"));
    assertEquals(reason, e.reason());
    boolean general = List.of("INTERNAL", "NO_SUCH_CALL").contains(reason);
    assertEquals(general, e.getClass() == SidecarException.class, e.getClass().toString());
    SidecarException again = e.again();
    assertEquals(e.getClass(), again.getClass());
    assertEquals(Map.of("k", "v"), again.metadata());
    assertEquals(e, again.getCause());
  }

  static Stream<SidecarException> all() throws IOException {
    Loss loss = new Loss("r", "id", 7, "FORCED", "by an admin", BootClock.system().atMost() + 60_000_000_000L);
    return Stream.concat(
        reasons().stream().map(r -> SidecarException.of(r, "m " + r, Map.of("holder_pid", "42"))),
        Stream.of(
            new LockLostException(loss, BootClock.system()),
            new IncompleteException(Set.of("eu-2", "eu-1")),
            new SidecarUnavailableException("NO_SIDECAR", "nothing is there", new IOException("no"), true)));
  }

  /** They travel between processes: in caches, queues, remote calls. */
  @ParameterizedTest
  @MethodSource("all")
  void itSurvivesSerialization(SidecarException e) throws Exception {
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    try (ObjectOutputStream out = new ObjectOutputStream(bytes)) {
      out.writeObject(e);
    }
    SidecarException copy;
    try (ObjectInputStream in = new ObjectInputStream(new ByteArrayInputStream(bytes.toByteArray()))) {
      copy = (SidecarException) in.readObject();
    }
    assertEquals(e.getClass(), copy.getClass());
    assertEquals(e.reason(), copy.reason());
    assertEquals(e.getMessage(), copy.getMessage());
    assertEquals(e.metadata(), copy.metadata());
    assertThrows(UnsupportedOperationException.class, () -> copy.metadata().put("k", "v"));
    if (copy instanceof LockLostException lost) {
      assertEquals(((LockLostException) e).lostReason(), lost.lostReason());
      assertEquals(Duration.ZERO, lost.graceLeft(), "it is counted in the process that had the lock");
    }
    if (copy instanceof IncompleteException list) {
      assertEquals(List.of("eu-1", "eu-2"), list.missing());
    }
  }

  /** What a native image must know of the client. */
  @Test
  void reachabilityMetadata() throws IOException {
    Json metadata;
    try (var in = getClass().getResourceAsStream("/META-INF/native-image/io.github.locksidecar/locksidecar-client/reachability-metadata.json")) {
      metadata = Json.parse(new String(in.readAllBytes(), java.nio.charset.StandardCharsets.UTF_8));
    }
    List<String> classes;
    try (Stream<Path> sources = Files.list(Path.of("src/main/java/io/github/locksidecar"))) {
      classes =
          sources
              .map(f -> f.getFileName().toString())
              .filter(f -> f.endsWith("Exception.java"))
              .map(f -> "io.github.locksidecar." + f.replace(".java", ""))
              .sorted()
              .toList();
    }
    Set<String> needed = new TreeSet<>(classes);
    for (SidecarException e : all().toList()) {
      needed.addAll(classesOf(e));
    }
    for (String section : List.of("reflection", "serialization")) {
      assertEquals(needed, new TreeSet<>(metadata.objects(section).stream().map(c -> c.text("type")).toList()), section);
    }
    assertTrue(metadata.objects("reflection").stream().allMatch(c -> c.flag("serializable")));
    try (Stream<Path> sources = Files.list(Path.of("src/main/java/io/github/locksidecar"))) {
      for (Path source : sources.toList()) {
        String text = Files.readString(source);
        for (String reflection : Arrays.asList("java.lang.reflect", "Class.forName", "ServiceLoader", "getResource", "synchronized ")) {
          assertFalse(text.contains(reflection), source + " has " + reflection);
        }
      }
    }
  }

  /** The classes that have a description in what an exception becomes. */
  private static Set<String> classesOf(SidecarException e) throws IOException {
    Set<String> names = new TreeSet<>();
    try (ObjectOutputStream out =
        new ObjectOutputStream(new ByteArrayOutputStream()) {
          @Override
          protected void annotateClass(Class<?> c) {
            names.add(c.getTypeName());
          }
        }) {
      out.writeObject(e);
    }
    return names;
  }

  @Test
  void nothingElseIsNeeded() throws IOException {
    String pom = Files.readString(Path.of("pom.xml"));
    int needed = pom.split("<dependency>", -1).length - 1;
    assertEquals(needed, pom.split("<scope>test</scope>", -1).length - 1, "a dependency that is not only for tests");
  }
}
