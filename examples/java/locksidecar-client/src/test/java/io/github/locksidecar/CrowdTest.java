package io.github.locksidecar;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;

/** More acquires at a time than the sidecar takes of one session. */
class CrowdTest extends CoreScript {
  /** Above what the sidecar takes at a time, acquires queue here; those for something else get through. */
  @Test
  void acquiresQueueAboveTheLimit() {
    List<Call> all = new ArrayList<>();
    for (int i = 0; i < 820; i++) {
      all.add(acquire("r", null));
    }
    assertEquals(800, sent().size());
    Call waits = acquire("r", Duration.ofSeconds(3));
    Call other = acquire("other", Duration.ofSeconds(60));
    assertEquals(1, sent().size(), "its holder may wait for nothing else");
    Call try1 = acquire("r", Duration.ZERO);
    assertFalse(core.hasOutput());
    grants(all.get(0));
    grants(all.get(1));
    List<String> next = sent(); // 800 are on their way again
    assertEquals(1, next.size(), next.toString());
    assertTrue(next.get(0).contains("\"wait\":\"0.0"), "a try goes first: " + next);
    refuses(core, try1, "LOCK_HELD");
    nano.addAndGet(2 * S);
    core.look();
    assertFalse(waits.answer.isDone());
    nano.addAndGet(core.look());
    core.look();
    assertEquals("WAIT_TIMEOUT", reasonOf(waits));
    Call late = all.get(819);
    core.abandon(late);
    sent();
    for (Call c : all) {
      if (!c.id.isEmpty() && !c.answer.isDone()) {
        grants(c);
      }
    }
    assertEquals("", late.id, "nobody wants it");
    assertTrue(all.subList(0, 819).stream().allMatch(c -> c.answer.isDone()));
    assertFalse(other.answer.isDone());
  }

  /** What is left of a wait is what the sidecar is asked for. */
  @Test
  void aWaitThatQueuedIsShorter() {
    Call first = null;
    for (int i = 0; i < 800; i++) {
      first = acquire("r", null);
    }
    sent();
    Call c = acquire("r", Duration.ofSeconds(60));
    nano.addAndGet(20 * S);
    grants(first);
    assertTrue(sent().get(0).contains("\"wait\":\"40.000000000s\""));
    grants(c);
    assertEquals("L" + c.id, c.held.id);
  }

  @Test
  void aSidecarThatTakesFewer() {
    Call a = acquire("a", null);
    Call b = acquire("b", null);
    sent();
    says(
        "{'requestId':'" + b.id + "','error':{'code':8,'message':'full','details':[{'reason':'LIMIT_EXCEEDED',"
            + "'domain':'locksidecar','metadata':{'limit':'waiters','max':'1'}}]}}");
    assertFalse(b.answer.isDone() || core.hasOutput());
    Call c = acquire("c", null);
    assertFalse(core.hasOutput());
    grants(a);
    assertEquals(1, sent().size());
    grants(b);
    grants(c);
    assertTrue(b.answer.isDone() && c.answer.isDone());
  }

  static final String FULL =
      "'error':{'code':8,'message':'full','details':[{'reason':'LIMIT_EXCEEDED','domain':'locksidecar','metadata':{'limit':'waiters','max':'%d'}}]}";

  void tooMany(Call c, int max) {
    says("{'requestId':'" + c.id + "'," + String.format(FULL, max) + "}");
  }

  /** The resources of the acquires that were sent. */
  List<String> asked() {
    return sent().stream().map(line -> line.replaceAll(".*\"resource\":\"([^\"]*)\".*", "$1")).toList();
  }

  /** Those that are refused were asked for before the ones that queue here. */
  @Test
  void whoIsRefusedKeepsItsPlace() {
    Call a = acquire("a", null);
    List<Call> refused = Stream.of("b", "c", "d").map(r -> acquire(r, null)).toList();
    sent();
    List<Call> all = new ArrayList<>(refused);
    tooMany(refused.get(0), 1);
    all.add(acquire("e", null));
    refused.stream().skip(1).forEach(c -> tooMany(c, 1));
    assertFalse(core.hasOutput());
    grants(a);
    for (Call c : all) {
      assertEquals(List.of(c.wanted.resource()), asked());
      grants(c);
    }
    assertFalse(core.hasOutput());
  }

  /** It has room for more than are on their way, but said no a moment ago. */
  @Test
  void nobodyOvertakesTheRefused() {
    Call a = acquire("a", null);
    Call b = acquire("b", null);
    sent();
    tooMany(b, 5);
    Call later = acquire("b", null);
    assertFalse(core.hasOutput(), "and it is not asked again before one was answered");
    grants(a);
    assertEquals(List.of("b", "b"), asked());
    assertTrue(Long.parseLong(b.id, 36) < Long.parseLong(later.id, 36));
  }

  @Test
  void triesKeepTheirOrder() {
    Call a = acquire("a", null);
    Call b = acquire("b", null);
    sent();
    tooMany(b, 1);
    List<Call> tries = Stream.of("x", "y", "z").map(r -> acquire(r, Duration.ZERO)).toList();
    grants(a);
    for (Call c : tries) {
      assertEquals(List.of(c.wanted.resource()), asked());
      refuses(core, c, "LOCK_HELD");
    }
    assertEquals(List.of("b"), asked(), "tries go first");
  }

  /** Else its holder, who may wait for nothing else, waits for a place among those who wait for others. */
  @Test
  void whatNobodyAsksForAnyMoreGetsThroughBeforeThoseWhoCameEarlier() {
    for (int i = 0; i < 800; i++) {
      acquire("busy", null);
    }
    Call first = acquire("r", null);
    acquire("busy", null);
    acquire("r", null);
    assertEquals(801, sent().size());
    grants(first);
    assertEquals(List.of("r"), asked());
  }

  /** Also where it had to queue because there was no room at all. */
  @Test
  void whatNobodyAsksForGetsThroughAsSoonAsThereIsRoom() {
    List<Call> on = new ArrayList<>();
    for (int i = 0; i < 800; i++) {
      on.add(acquire("busy", null));
    }
    acquire("busy", null);
    for (int i = 0; i < 199; i++) {
      on.add(acquire("r" + i, null));
    }
    tooManyOthersWait(on);
    acquire("free", null);
    assertFalse(core.hasOutput());
    grants(on.get(1));
    assertEquals(List.of("free"), asked());
  }

  /** 1,000 are on their way, and who queues was looked through in vain. */
  private void tooManyOthersWait(List<Call> on) {
    grants(on.get(0));
    acquire("s0", null);
    acquire("s1", null);
    assertEquals(1001, sent().size());
  }

  @Test
  void whoGivesUpInTheQueueHoldsNobodyUp() {
    Call a = acquire("a", null);
    Call b = acquire("b", null);
    Call c = acquire("c", null);
    sent();
    tooMany(b, 1);
    tooMany(c, 1);
    core.abandon(b);
    assertFalse(core.hasOutput(), "the sidecar knows nothing of it");
    grants(a);
    assertEquals(List.of("c"), asked());
    assertFalse(b.answer.isDone());
  }

  /** Nothing of it is at the sidecar any more. */
  @Test
  void whatWasRefusedGoesToAnotherSession() {
    Call a = acquire("a", null);
    Call b = acquire("b", null);
    sent();
    tooMany(b, 1);
    core.end(new SidecarUnavailableException("SIDECAR_GONE", "it was killed", null), "SIDECAR_GONE", "it was killed", 1 << 20);
    assertFalse(a.unsent);
    assertTrue(b.unsent);
  }

  /** The look that was due for others would be five seconds later. */
  @Test
  void theWaitOfOneThatWasRefusedEndsInTime() {
    acquire("a", null);
    Call b = acquire("b", Duration.ofSeconds(1));
    sent();
    tooMany(b, 1);
    long began = nano.get();
    for (long next = core.look(); !b.answer.isDone(); next = core.look()) {
      nano.addAndGet(Math.max(MS, next));
    }
    assertEquals("WAIT_TIMEOUT", reasonOf(b));
    assertTrue(nano.get() - began < S + 100 * MS, "after " + (nano.get() - began));
  }

  /** The sidecar is well, and other acquires of this process are in the way. */
  @Test
  void aTryThatQueuesForTooLong() {
    Call a = acquire("a", null);
    Call b = acquire("b", null);
    sent();
    tooMany(b, 1);
    Call once = acquire("c", Duration.ZERO);
    while (!once.answer.isDone()) {
      nano.addAndGet(Math.max(MS, core.look()));
      if (core.hasOutput()) {
        String ping = sent().get(0).replaceAll(".*\"requestId\":\"([^\"]*)\".*", "$1");
        says("{'requestId':'" + ping + "','keptAlive':{'validFor':'0s'}}");
      }
    }
    assertEquals("LIMIT_EXCEEDED", reasonOf(once));
    assertFalse(a.answer.isDone() || b.answer.isDone());
  }
}
