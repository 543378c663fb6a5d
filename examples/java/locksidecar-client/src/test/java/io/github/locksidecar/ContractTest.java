package io.github.locksidecar;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.DynamicTest.dynamicTest;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.TestFactory;
import org.junit.jupiter.api.parallel.Execution;
import org.junit.jupiter.api.parallel.ExecutionMode;

/** What every client must do: the cases of examples/contract, each on the stores that it asks for. */
@Execution(ExecutionMode.CONCURRENT)
class ContractTest {
  private static final Path CASES = Path.of("../../contract");

  @TestFactory
  List<DynamicTest> cases() throws IOException {
    List<DynamicTest> tests = new ArrayList<>();
    try (var files = Files.newDirectoryStream(CASES, "*.json")) {
      for (Path file : files) {
        Json c = Json.parse(Files.readString(file));
        String name = file.getFileName().toString().replace(".json", "");
        String redis = env("LOCKSIDECAR_TEST_REDIS");
        switch (c.has("store") ? c.text("store") : "any") {
          case "any" -> tests.add(test(file, name, c, redis == null ? "embedded:" : redis));
          case "shared" -> {
            tests.add(test(file, name + " on Redis", c, redis));
            tests.add(test(file, name + " on MySQL", c, env("LOCKSIDECAR_TEST_MYSQL")));
          }
          case "mysql" -> tests.add(test(file, name, c, env("LOCKSIDECAR_TEST_MYSQL")));
          default -> throw new IOException(file + " asks for a store that is not known");
        }
      }
    }
    assertFalse(tests.isEmpty(), "no cases in " + CASES.toAbsolutePath().normalize());
    return tests;
  }

  private static String env(String name) {
    String v = System.getenv(name);
    return v == null || v.isEmpty() ? null : v;
  }

  private static DynamicTest test(Path file, String name, Json c, String store) {
    return dynamicTest(
        name,
        () -> {
          Assumptions.assumeTrue(store != null, "the store is not there");
          Assumptions.assumeFalse(c.texts("needs").contains("fork"), "Java does not fork");
          if (c.texts("needs").contains("stop")) {
            alone(file, store);
            return;
          }
          try (ContractCase run = new ContractCase(c, store)) {
            run.run();
          }
        });
  }

  /** Runs a case in a process of its own. */
  private static void alone(Path file, String store) throws IOException, InterruptedException {
    String java = Path.of(System.getProperty("java.home"), "bin", "java").toString();
    String classes = System.getProperty("java.class.path");
    Process p =
        new ProcessBuilder(java, "-cp", classes, ContractCase.class.getName(), file.toString(), store)
            .redirectErrorStream(true)
            .start();
    String said = new String(p.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
    assertEquals(0, p.waitFor(), said);
  }
}
