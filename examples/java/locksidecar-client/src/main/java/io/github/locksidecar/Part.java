package io.github.locksidecar;

import java.util.Optional;

/**
 * One of several resources that are held together.
 *
 * @param lockId as lists show it
 * @param fence to be sent with each write that is for this resource
 * @param guard where the store is an SQL database
 */
public record Part(String resource, String lockId, long fence, Optional<Guard> guard) {
  static Part read(Json j) {
    return new Part(j.text("resource"), j.text("lockId"), j.number("fence"), Optional.ofNullable(Guard.read(j.object("guard"))));
  }
}
