package io.github.locksidecar;

import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.Code;
import com.google.rpc.ErrorInfo;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.protobuf.ProtoUtils;
import java.nio.file.Path;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import locksidecar.v1.Locksidecar.SessionResponse;

/** Waits for answers and reads what they refuse. */
final class Answers {
  private Answers() {}

  private static final Metadata.Key<com.google.rpc.Status> DETAILS =
      Metadata.Key.of(
          "grpc-status-details-bin",
          ProtoUtils.metadataMarshaller(com.google.rpc.Status.getDefaultInstance()));

  /**
   * Waits as long as limit (in nanoseconds; 0: for ever).
   *
   * @throws InterruptedException the caller's thread was interrupted; the request goes on
   * @throws SidecarException it was refused, the session ended, or the answer is overdue
   */
  static SessionResponse awaitInterruptibly(Call c, long limit, Path socket) throws InterruptedException {
    try {
      return checked(limit == 0 ? c.answer.get() : c.answer.get(limit, TimeUnit.NANOSECONDS));
    } catch (ExecutionException e) {
      throw again(e);
    } catch (TimeoutException e) {
      throw overdue(socket);
    }
  }

  /** The same, whatever becomes of the thread; it is marked as interrupted afterwards. */
  static SessionResponse await(Call c, long limit, Path socket) {
    settle(c.answer, limit);
    if (!c.answer.isDone()) {
      throw overdue(socket);
    }
    return checked(get(c.answer));
  }

  /** Waits for what comes in any case. */
  static <T> T get(CompletableFuture<T> future) {
    settle(future, 0);
    try {
      return future.join();
    } catch (CompletionException e) {
      throw again(e);
    }
  }

  /** The same, unless the thread is interrupted. */
  static <T> T getInterruptibly(CompletableFuture<T> future) throws InterruptedException {
    try {
      return future.get();
    } catch (ExecutionException e) {
      throw again(e);
    }
  }

  /** Waits until it is done or limit (in nanoseconds; 0: none) is over, and tells neither. */
  static void settle(CompletableFuture<?> done, long limit) {
    long end = System.nanoTime() + limit;
    boolean interrupted = false;
    while (!done.isDone()) {
      try {
        if (limit == 0) {
          done.get();
        } else {
          done.get(end - System.nanoTime(), TimeUnit.NANOSECONDS);
        }
      } catch (InterruptedException e) {
        interrupted = true;
      } catch (TimeoutException | ExecutionException e) {
        break;
      }
    }
    if (interrupted) {
      Thread.currentThread().interrupt();
    }
  }

  static SidecarException overdue(Path socket) {
    return new SidecarUnavailableException(
        Loss.SILENT, "the sidecar at " + socket + " does not answer: it may be frozen", null);
  }

  /** Gives an answer that refuses nothing. */
  static SessionResponse checked(SessionResponse m) {
    if (m.hasError()) {
      throw read(m.getError());
    }
    return m;
  }

  /** What others were told too, with the stack of this caller. */
  static SidecarException again(Throwable why) {
    boolean wrapped = why instanceof ExecutionException || why instanceof CompletionException;
    Throwable end = wrapped && why.getCause() != null ? why.getCause() : why;
    if (end instanceof SidecarUnavailableException e) {
      return new SidecarUnavailableException(e.reason(), e.getMessage(), e);
    }
    if (end instanceof SidecarException e) {
      return new SidecarException(e.reason(), e.getMessage(), e.metadata(), e);
    }
    return new SidecarException("INTERNAL", String.valueOf(end), Map.of(), end);
  }

  /** Reads an error of the API. */
  private static SidecarException read(com.google.rpc.Status status) {
    for (Any detail : status.getDetailsList()) {
      if (detail.is(ErrorInfo.class)) {
        try {
          ErrorInfo info = detail.unpack(ErrorInfo.class);
          if (info.getDomain().equals("locksidecar")) {
            return SidecarException.of(info.getReason(), status.getMessage(), info.getMetadataMap());
          }
        } catch (InvalidProtocolBufferException e) {
          break; // told without it
        }
      }
    }
    if (status.getCode() == Code.RESOURCE_EXHAUSTED_VALUE) { // gRPC itself refuses large messages
      return SidecarException.of("LIMIT_EXCEEDED", status.getMessage(), Map.of());
    }
    String message = status.getMessage() + " (" + Code.forNumber(status.getCode()) + ")";
    return SidecarException.of("INTERNAL", message, Map.of());
  }

  /** Reads how a stream ended. */
  static SidecarException endOf(Status status, Metadata trailers, Path socket, boolean opened) {
    com.google.rpc.Status details = trailers == null ? null : trailers.get(DETAILS);
    if (details != null) {
      return read(details);
    }
    if (!opened && status.getCode() == Status.Code.UNAVAILABLE) {
      Throwable why = status.getCause() == null ? status.asException() : status.getCause();
      return SocketPath.explain(socket, why);
    }
    if (status.getCode() == Status.Code.RESOURCE_EXHAUSTED) {
      return SidecarException.of("LIMIT_EXCEEDED", status.getDescription(), Map.of());
    }
    String message = "the connection to the sidecar at " + socket + " ended";
    if (status.getDescription() != null) {
      message += ": " + status.getDescription();
    }
    return new SidecarUnavailableException(Loss.GONE, message, status.getCause());
  }
}
