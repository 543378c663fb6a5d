package io.github.locksidecar;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.time.Duration;
import java.util.Locale;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.parallel.Isolated;

/** In a locale that has digits of its own. */
@Isolated("the locale is that of all tests")
class LocaleTest {
  @Test
  void whatIsSentHasTheDigitsOfTheApi() throws Exception {
    Locale before = Locale.getDefault();
    Locale.setDefault(Locale.forLanguageTag("ar-EG"));
    try (TestSidecar sidecar = TestSidecar.start();
        LockSidecar locks = LockSidecar.builder().socket(sidecar.socket).connect()) {
      assertEquals("١٢", String.format("%d", 12), "the JDK has that locale");
      try (Hold hold = locks.lock("r").withMaxHold(Duration.ofMinutes(1)).acquire(Duration.ofSeconds(20))) {
        hold.extend(Duration.ofMinutes(2));
      }
      assertEquals("{\"a\":\"\\u000f\",\"n\":12}", new Json().with("a", "\u000f").with("n", 12).toString());
    } finally {
      Locale.setDefault(before);
    }
  }
}
