package io.github.locksidecar;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * An object of JSON, as much of it as lines need. What is not there reads as empty, 0, or false: the
 * API leaves nothing out that has another meaning.
 *
 * <p>Values are String, Long, Double, Boolean, null, List and Json.
 */
final class Json {
  private final Map<String, Object> fields = new LinkedHashMap<>();

  /** Adds a field; a null adds nothing. */
  Json with(String name, Object value) {
    if (value != null) {
      fields.put(name, value);
    }
    return this;
  }

  static Json of(Map<String, String> texts) {
    Json j = new Json();
    j.fields.putAll(texts);
    return j;
  }

  // --- fields. ClassCastException: the value is of another kind

  boolean has(String name) {
    return fields.get(name) != null;
  }

  String text(String name) {
    String v = (String) fields.get(name);
    return v == null ? "" : v;
  }

  boolean flag(String name) {
    return Boolean.TRUE.equals((Boolean) fields.get(name));
  }

  /** A whole number; 64-bit ones are texts in the API. */
  long number(String name) {
    Object v = fields.get(name);
    return v == null ? 0 : v instanceof String s ? Long.parseLong(s) : ((Number) v).longValue();
  }

  /** A duration, {@code "7.5s"}, in nanoseconds. */
  long nanos(String name) {
    return has(name) ? Times.parse(text(name)) : 0;
  }

  /** Null: there is none. */
  Json object(String name) {
    return (Json) fields.get(name);
  }

  List<Json> objects(String name) {
    return list(name).stream().map(Json.class::cast).toList();
  }

  List<String> texts(String name) {
    return list(name).stream().map(String.class::cast).toList();
  }

  List<?> list(String name) {
    List<?> v = (List<?>) fields.get(name);
    return v == null ? List.of() : v;
  }

  /** The fields of an object of texts. */
  Map<String, String> textMap(String name) {
    Json of = object(name);
    Map<String, String> all = new LinkedHashMap<>();
    if (of != null) {
      of.fields.keySet().forEach(key -> all.put(key, of.text(key)));
    }
    return all;
  }

  /** The names of its fields, also of those that are null. */
  Set<String> names() {
    return fields.keySet();
  }

  // --- writing

  @Override
  public String toString() {
    StringBuilder b = new StringBuilder(128);
    write(b, this);
    return b.toString();
  }

  private static void write(StringBuilder b, Object v) {
    if (v instanceof Json j) {
      b.append('{');
      String comma = "";
      for (Map.Entry<String, Object> e : j.fields.entrySet()) {
        b.append(comma);
        quote(b, e.getKey());
        write(b.append(':'), e.getValue());
        comma = ",";
      }
      b.append('}');
    } else if (v instanceof List<?> all) {
      b.append('[');
      String comma = "";
      for (Object one : all) {
        write(b.append(comma), one);
        comma = ",";
      }
      b.append(']');
    } else if (v instanceof String s) {
      quote(b, s);
    } else {
      b.append(v); // a number, a truth or null
    }
  }

  private static void quote(StringBuilder b, String s) {
    b.append('"');
    for (int i = 0; i < s.length(); i++) {
      char c = s.charAt(i);
      if (c == '"' || c == '\\') {
        b.append('\\').append(c);
      } else if (c < ' ') {
        b.append(String.format("\\u%04x", (int) c));
      } else {
        b.append(c);
      }
    }
    b.append('"');
  }

  // --- reading

  /**
   * Reads one object.
   *
   * @throws IllegalArgumentException it is none
   */
  static Json parse(String text) {
    Parser p = new Parser(text);
    Object v = p.value(0);
    p.space();
    if (p.at != text.length() || !(v instanceof Json)) {
      throw p.mistake();
    }
    return (Json) v;
  }

  private static final class Parser {
    private static final int DEEPEST = 64;

    private final String text;
    private int at;

    Parser(String text) {
      this.text = text;
    }

    IllegalArgumentException mistake() {
      return new IllegalArgumentException("no JSON at character " + at + ": " + text.substring(0, Math.min(80, text.length())));
    }

    void space() {
      while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) {
        at++;
      }
    }

    private char next() {
      if (at == text.length()) {
        throw mistake();
      }
      return text.charAt(at++);
    }

    /** Goes on behind a character if it is the next one. */
    private boolean skip(char c) {
      space();
      boolean is = at < text.length() && text.charAt(at) == c;
      if (is) {
        at++;
      }
      return is;
    }

    private void expect(char c) {
      if (!skip(c)) {
        throw mistake();
      }
    }

    private Object value(int depth) {
      if (depth > DEEPEST) {
        throw mistake();
      }
      space();
      char c = next();
      return switch (c) {
        case '{' -> object(depth);
        case '[' -> list(depth);
        case '"' -> string();
        case 't' -> word("true", true);
        case 'f' -> word("false", false);
        case 'n' -> word("null", null);
        default -> number();
      };
    }

    private Json object(int depth) {
      Json j = new Json();
      if (skip('}')) {
        return j;
      }
      do {
        expect('"');
        String name = string();
        expect(':');
        j.fields.put(name, value(depth + 1));
      } while (skip(','));
      expect('}');
      return j;
    }

    private List<Object> list(int depth) {
      List<Object> all = new ArrayList<>();
      if (skip(']')) {
        return all;
      }
      do {
        all.add(value(depth + 1));
      } while (skip(','));
      expect(']');
      return all;
    }

    private Object word(String word, Object value) {
      if (!text.startsWith(word, at - 1)) {
        throw mistake();
      }
      at += word.length() - 1;
      return value;
    }

    private Object number() {
      int start = --at;
      while (at < text.length() && "+-.eE0123456789".indexOf(text.charAt(at)) >= 0) {
        at++;
      }
      String n = text.substring(start, at);
      try {
        if (n.chars().allMatch(c -> c == '-' || c >= '0' && c <= '9')) {
          return Long.valueOf(n);
        }
        return Double.valueOf(n);
      } catch (NumberFormatException e) {
        throw mistake();
      }
    }

    private String string() {
      int plain = at;
      while (true) {
        char c = next();
        if (c == '"') {
          return text.substring(plain, at - 1);
        }
        if (c == '\\') {
          return escaped(new StringBuilder(text.substring(plain, at - 1)));
        }
      }
    }

    /** The rest of a string, from behind its first backslash. */
    private String escaped(StringBuilder b) {
      char c = '\\';
      while (true) {
        if (c == '"') {
          return b.toString();
        }
        b.append(c == '\\' ? escape() : c);
        c = next();
      }
    }

    private char escape() {
      char c = next();
      return switch (c) {
        case 'b' -> '\b';
        case 'f' -> '\f';
        case 'n' -> '\n';
        case 'r' -> '\r';
        case 't' -> '\t';
        case '"', '\\', '/' -> c;
        case 'u' -> {
          if (at + 4 > text.length()) {
            throw mistake();
          }
          at += 4;
          try {
            yield (char) Integer.parseInt(text, at - 4, at, 16);
          } catch (NumberFormatException e) {
            throw mistake();
          }
        }
        default -> throw mistake();
      };
    }
  }
}
