package io.github.locksidecar.scenarios.loans;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.util.List;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Several real processes, on a real database. */
@Timeout(120)
class LoanPlatformTest {
  private static final String STORE = System.getenv("LOCKSIDECAR_TEST_MYSQL");

  @BeforeEach
  void thereIsADatabase() {
    assumeTrue(STORE != null && !STORE.isEmpty(), "LOCKSIDECAR_TEST_MYSQL is not set");
  }

  @Test
  void thePausedRepaymentRollsBack() throws Exception {
    LoanPlatform.Outcome o = new LoanPlatform(STORE, true).run();
    assertEquals("rolled back", o.sleeper());
    assertTrue(o.meanwhile() > 0);
    assertEquals(List.of(), o.audit().problems());
    assertTrue(o.audit().sideBySide() > 1, "transfers do not run side by side");
    assertTrue(o.audit().transfers() > 10, o.audit().transfers() + " transfers");
    assertTrue(o.sound());
  }

  /** The same without the guard goes wrong: so the audit would notice. */
  @Test
  void withoutTheGuardItDoesNot() throws Exception {
    LoanPlatform.Outcome o = new LoanPlatform(STORE, false).run();
    assertEquals("committed", o.sleeper());
    assertFalse(o.audit().problems().isEmpty());
    assertFalse(o.sound());
  }
}
