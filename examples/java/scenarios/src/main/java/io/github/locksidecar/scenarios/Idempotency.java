package io.github.locksidecar.scenarios;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.BufferedReader;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.UnixDomainSocketAddress;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.ByteBuffer;
import java.nio.channels.Channels;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.concurrent.Executors;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * An HTTP handler that carries out a request once, however often it is sent.
 *
 * <p>The {@code Idempotency-Key} is what is done once. Who comes again with it gets the answer of
 * the first time, from whatever process at whatever machine. The sidecar is asked by lines, and
 * nothing but the JDK is needed. The bank is {@code POST /transfers?key=…&cents=…&fence=…}, and
 * {@code GET} to ask whether it was done. It refuses a fence that is smaller than one that it has
 * seen for the same key.
 */
public final class Idempotency {
  private static final HttpClient HTTP = HttpClient.newHttpClient();

  /** The bank has refused: nothing was done, that is sure. */
  private static final class RefusedException extends Exception {}

  /** The connection is the session: whatever ends it leaves the outcome unknown. */
  private record Sidecar(SocketChannel channel, BufferedReader lines) implements AutoCloseable {
    static Sidecar connect() throws IOException {
      SocketChannel c = SocketChannel.open(UnixDomainSocketAddress.of(System.getenv("LOCKSIDECAR_SOCKET")));
      Sidecar s = new Sidecar(c, new BufferedReader(Channels.newReader(c, StandardCharsets.UTF_8)));
      s.ask("{\"requestId\":\"1\",\"open\":{\"name\":\"withdrawals\"}}");
      return s;
    }

    String ask(String request) throws IOException {
      ByteBuffer b = StandardCharsets.UTF_8.encode(request + "\n");
      while (b.hasRemaining()) {
        channel.write(b);
      }
      for (String line; (line = lines.readLine()) != null; ) {
        if (!field(line, "requestId").isEmpty()) { // else it is news
          return line;
        }
      }
      throw new IOException("the sidecar is gone");
    }

    @Override
    public void close() throws IOException {
      channel.close();
    }
  }

  /** A text of an answer, which here has no character that JSON escapes; empty: it is not there. */
  private static String field(String json, String name) {
    Matcher m = Pattern.compile("\"" + name + "\":\"([^\"]*)\"").matcher(json);
    return m.find() ? m.group(1) : "";
  }

  private static String withdraw(String bank, String key, String cents)
      throws IOException, InterruptedException, RefusedException {
    try (Sidecar sidecar = Sidecar.connect()) {
      String answer =
          sidecar.ask(
              "{\"requestId\":\"2\",\"acquire\":{\"resource\":\"withdrawals/"
                  + key
                  + "\",\"wait\":\"5s\",\"once\":{\"keep\":\"172800s\"}}}");
      if (field(answer, "reason").equals("ALREADY_DONE")) {
        return field(answer, "note");
      }
      String lock = field(answer, "lockId");
      if (lock.isEmpty()) {
        throw new IOException(field(answer, "message"));
      }
      String release = "{\"requestId\":\"3\",\"release\":{\"lockId\":\"" + lock + "\",\"outcome\":\"";
      String transfer;
      try {
        boolean asks = answer.contains("\"previous\":") && field(answer, "state").equals("UNKNOWN");
        transfer = pay(bank + "/transfers?key=" + key + "&cents=" + cents + "&fence=" + field(answer, "fence"), asks);
      } catch (RefusedException e) {
        sidecar.ask(release + "FAILED\",\"note\":\"the bank has refused\"}}");
        throw e;
      }
      answer = sidecar.ask(release + "SUCCEEDED\",\"note\":\"" + transfer + "\"}}");
      if (answer.contains("\"error\":")) {
        throw new IOException(field(answer, "message"));
      }
      return transfer;
    }
  }

  /** Pays, unless it was paid by an attempt of which nobody knows how it ended. */
  private static String pay(String url, boolean asks) throws IOException, InterruptedException, RefusedException {
    HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(url)).timeout(Duration.ofSeconds(10));
    if (asks) {
      HttpResponse<String> found = HTTP.send(request.GET().build(), HttpResponse.BodyHandlers.ofString());
      if (found.statusCode() == 200) {
        return found.body();
      }
      if (found.statusCode() != 404) {
        throw new IOException("the bank says " + found.statusCode());
      }
    }
    HttpResponse<String> paid =
        HTTP.send(request.POST(HttpRequest.BodyPublishers.noBody()).build(), HttpResponse.BodyHandlers.ofString());
    switch (paid.statusCode()) {
      case 200:
        return paid.body();
      case 402:
        throw new RefusedException();
      default:
        throw new IOException("the bank says " + paid.statusCode());
    }
  }

  private static void handle(HttpExchange exchange, String bank) throws IOException {
    String key = exchange.getRequestHeaders().getFirst("Idempotency-Key");
    String cents = new String(exchange.getRequestBody().readAllBytes(), StandardCharsets.US_ASCII);
    int status = 200;
    String text;
    try {
      if (key == null || !key.matches("[A-Za-z0-9_-]{1,64}") || !cents.matches("[0-9]+")) {
        status = 400;
        text = "an Idempotency-Key and a number of cents are needed";
      } else {
        text = withdraw(bank, key, cents);
      }
    } catch (RefusedException e) {
      status = 402;
      text = "the bank has refused";
    } catch (IOException e) {
      status = 503;
      text = "send it again: " + e.getMessage();
    } catch (InterruptedException e) {
      throw new IOException(e);
    }
    byte[] body = text.getBytes(StandardCharsets.UTF_8);
    exchange.sendResponseHeaders(status, body.length);
    try (exchange) {
      exchange.getResponseBody().write(body);
    }
  }

  /** The first argument is the URL of the bank. */
  public static void main(String[] args) throws IOException {
    HttpServer server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
    server.setExecutor(Executors.newCachedThreadPool());
    server.createContext("/withdrawals", exchange -> handle(exchange, args[0]));
    server.start();
    System.out.println("http://127.0.0.1:" + server.getAddress().getPort() + "/withdrawals");
  }
}
