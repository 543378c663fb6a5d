package io.github.locksidecar;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.lang.reflect.InvocationHandler;
import java.lang.reflect.Proxy;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.junit.jupiter.api.Test;

/** What is asked of the database. On a real one the loan platform asks it. */
class GuardTest {
  final List<String> asked = new ArrayList<>();
  boolean autoCommit;
  boolean query; // the guard gives rows, and does not count them
  boolean row;

  private <T> T fake(Class<T> type) {
    InvocationHandler answers =
        (self, method, args) -> {
          if (method.getName().equals("getAutoCommit")) {
            return autoCommit;
          }
          asked.add(method.getName() + (args == null ? "" : Arrays.asList(args).toString()));
          return switch (method.getName()) {
            case "prepareStatement" -> fake(PreparedStatement.class);
            case "execute" -> query;
            case "getUpdateCount" -> row ? 1 : 0;
            case "getResultSet" -> fake(ResultSet.class);
            case "next" -> row;
            default -> null;
          };
        };
    return type.cast(Proxy.newProxyInstance(type.getClassLoader(), new Class<?>[] {type}, answers));
  }

  @Test
  void oneWrittenRowAllowsTheCommit() throws Exception {
    Guard g = new Guard("mysql", "UPDATE l SET n = n WHERE a = ? AND b = ?", List.of("x", "y"));
    row = true;
    assertTrue(g.allowsCommit(fake(Connection.class)));
    assertEquals(
        List.of(
            "prepareStatement[UPDATE l SET n = n WHERE a = ? AND b = ?]", "setString[1, x]", "setString[2, y]",
            "execute", "getUpdateCount", "close"),
        asked);
    row = false;
    assertFalse(g.allowsCommit(fake(Connection.class)));
  }

  @Test
  void oneReadRowAllowsTheCommit() throws Exception {
    Guard g = new Guard("mysql", "SELECT 1 FROM l WHERE a = ?", List.of("x"));
    query = true;
    row = true;
    assertTrue(g.allowsCommit(fake(Connection.class)));
    assertEquals(
        List.of(
            "prepareStatement[SELECT 1 FROM l WHERE a = ?]", "setString[1, x]", "execute", "getResultSet", "next",
            "close", "close"),
        asked);
    row = false;
    assertFalse(g.allowsCommit(fake(Connection.class)));
  }

  @Test
  void itNeedsATransaction() {
    autoCommit = true;
    assertThrows(IllegalStateException.class, () -> new Guard("mysql", "", List.of()).allowsCommit(fake(Connection.class)));
    assertEquals(List.of(), asked);
  }
}
