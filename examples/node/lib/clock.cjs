'use strict';

const os = require('node:os');
const { performance } = require('node:perf_hooks');

// os.uptime() reads a file. It is asked again after so long, or when the wall clock has moved against
// the precise one by so much, as a suspend moves it. Both in milliseconds.
const LOOK_AFTER = 100;
const MOVED = 5;
// Where this process stood still between two looks that are to be one, it looks again: so often at most.
const LOOKS = 10;

let asleep = -Infinity; // how long the machine was suspended, as far as is known
let looked = -Infinity; // when os.uptime() was asked, on the precise clock
let apart = 0; // how far the wall clock was from that then

/**
 * The boot time of this machine in milliseconds: it goes on while the machine
 * is suspended, and nobody can set it. Node has no CLOCK_BOOTTIME. os.uptime()
 * is that clock in steps of 10 ms, performance.now() the precise one that stops
 * in suspend; the difference that both ever showed makes one of them. It is up
 * to 10 ms behind, and when it catches up, holds only end earlier. A suspend is seen at
 * once, or within LOOK_AFTER where somebody has set the wall clock back by just as much.
 */
function now() {
  for (let looks = 1; ; looks++) {
    const running = performance.now();
    const wall = Date.now() - running;
    if (running - looked <= LOOK_AFTER && Math.abs(wall - apart) <= MOVED) {
      return running + asleep;
    }
    const uptime = os.uptime() * 1e3;
    const after = performance.now();
    const atOnce = after - running <= MOVED;
    if (atOnce || looks === LOOKS) { // else what it stood still would count as a suspend, for good
      asleep = Math.max(asleep, uptime - (atOnce ? running : after));
      [looked, apart] = [running, wall];
      return after + asleep;
    }
  }
}

/**
 * The same without a look at os.uptime(), which reads a file: early by a suspend that nobody has
 * noticed yet. Good for the moment before a request and for timers, never for whether a hold is over.
 */
function early() {
  return performance.now() + asleep;
}

now(); // so that `asleep` is known

/** Reads a duration of the API, such as "8.9s". */
function parseDuration(text) {
  return text ? parseFloat(text) * 1e3 : 0;
}

/** Writes one. */
function formatDuration(ms) {
  return `${(ms / 1e3).toFixed(9)}s`;
}

/**
 * Maps moments on the sidecar's clock to ours, never too late. An answer was
 * counted after its request was sent: our clock before the request, less
 * countedAt, is at most the difference of the clocks, and the largest of these
 * is the best. So a message tells how old it is, also when this process was
 * stopped before it read it.
 */
class SidecarClock {
  #difference = -Infinity;

  answered(sent, countedAt) {
    this.#difference = Math.max(this.#difference, sent - parseDuration(countedAt));
  }

  /** The moment on our clock at which `left` milliseconds, counted at countedAt, are over. */
  until(countedAt, left) {
    return parseDuration(countedAt) + this.#difference + left;
  }
}

module.exports = { SidecarClock, early, formatDuration, now, parseDuration };
