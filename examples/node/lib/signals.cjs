'use strict';

const listeners = new WeakMap(); // by signal: what is to be called

/**
 * Calls back when a signal aborts, until the function that it gives is called. A signal
 * gets one listener, however many wait by it: Node warns of a leak at the eleventh.
 */
function onAbort(signal, callback) {
  if (!signal) {
    return () => {};
  }
  let known = listeners.get(signal);
  if (!known) {
    const calls = new Set();
    const aborted = () => {
      listeners.delete(signal);
      calls.forEach((call) => call());
    };
    known = { calls, aborted };
    listeners.set(signal, known);
    signal.addEventListener('abort', aborted, { once: true });
  }
  const call = () => callback();
  known.calls.add(call);
  return () => {
    known.calls.delete(call);
    if (known.calls.size === 0 && listeners.get(signal) === known) {
      listeners.delete(signal);
      signal.removeEventListener('abort', known.aborted);
    }
  };
}

module.exports = { onAbort };
