'use strict';

const { formatDuration } = require('./clock.cjs');
const { Detached } = require('./detached.cjs');
const { SidecarError } = require('./errors.cjs');

// The sidecar takes less of each; its own refusal names the limit.
const LONGEST = 8_192;

function refuse(field, message) {
  return new SidecarError('INVALID_REQUEST', message, { metadata: { field } });
}

/** What may be given, and how it is checked. */
const kinds = {
  text(field, value) {
    if (typeof value !== 'string') {
      throw refuse(field, `${field} must be a string, and not ${show(value)}`);
    }
    if (/\p{Surrogate}/u.test(value)) {
      throw refuse(field, `${field} is not valid Unicode: it has half of a surrogate pair`);
    }
    if (Buffer.byteLength(value) > LONGEST) {
      throw refuse(field, `${field} is ${Buffer.byteLength(value)} bytes long`);
    }
  },
  flag(field, value) {
    if (typeof value !== 'boolean') {
      throw refuse(field, `${field} must be true or false, and not ${show(value)}`);
    }
  },
  time(field, value) {
    if (typeof value !== 'number' || !(value >= 0)) {
      throw refuse(field, `${field} must be a number of milliseconds, 0 or more, and not ${show(value)}`);
    }
  },
  limited(field, value) {
    kinds.time(field, value);
    if (value === Infinity) {
      throw refuse(field, `${field} must have an end; leave it out for none`);
    }
  },
  whole(field, value) {
    if (!Number.isSafeInteger(value) || value < 0) {
      throw refuse(field, `${field} must be a whole number, 0 or more, and not ${show(value)}`);
    }
  },
  call(field, value) {
    if (typeof value !== 'function') {
      throw refuse(field, `${field} must be a function, and not ${show(value)}`);
    }
  },
  signal(field, value) {
    if (typeof value?.aborted !== 'boolean' || typeof value.addEventListener !== 'function') {
      throw refuse(field, `${field} must be an AbortSignal, and not ${show(value)}`);
    }
  },
  texts(field, value) {
    if (value === null || typeof value !== 'object') {
      throw refuse(field, `${field} must be an object of strings, and not ${show(value)}`);
    }
    for (const [key, one] of Object.entries(value)) {
      kinds.text(field, key);
      kinds.text(`${field}.${key}`, one);
    }
  },
  once(field, value) {
    if (value !== true) {
      check(value, { keep: kinds.limited, maxAttempts: kinds.whole }, field);
    }
  },
};

function show(value) {
  return typeof value === 'object' && value !== null ? 'an object' : typeof value === 'string' ? `"${value}"` : String(value);
}

/** Refuses options that nobody knows, and values that make no sense: a typo must not take another lock. */
function check(options, known, of = '') {
  if (options === null || typeof options !== 'object') {
    throw refuse(of || 'options', `${of || 'options'} must be an object, and not ${show(options)}`);
  }
  const prefix = of && `${of}.`;
  for (const [name, value] of Object.entries(options)) {
    if (!Object.hasOwn(known, name)) {
      throw refuse(prefix + name, `there is no option "${prefix}${name}"; there are ${Object.keys(known).join(', ')}`);
    }
    if (value !== undefined) {
      known[name](prefix + name, value);
    }
  }
}

const CLIENT = {
  socket: kinds.text, name: kinds.text, metadata: kinds.texts, ttl: kinds.limited, connectTimeout: kinds.time, onDraining: kinds.call,
};

const ACQUIRE = {
  shared: kinds.flag, wait: kinds.time, maxHold: kinds.limited, minHold: kinds.limited, owner: kinds.text, reentrant: kinds.flag,
  limit: kinds.whole, once: kinds.once, detachable: kinds.flag, signal: kinds.signal,
};

const ATTACH = { owner: kinds.text, signal: kinds.signal };

function checkClient(options) {
  check(options, CLIENT);
}

/**
 * What an acquire asks for: the body of the request but for its wait, `wait` in ms (undefined: for ever), and `what`, the
 * same for those that ask for the same.
 */
function readAcquire(resource, options) {
  check(options, ACQUIRE);
  const { shared = false, wait, maxHold, minHold, owner, reentrant = false, limit, once, detachable } = options;
  if (reentrant && owner === undefined) {
    throw refuse('owner', 'a reentrant acquire needs an owner: who enters again?');
  }
  if (shared && limit !== undefined) {
    throw refuse('limit', 'a hold is shared, or one of so many permits');
  }
  const several = Array.isArray(resource);
  (several ? resource : [resource]).forEach((one) => kinds.text('resource', one));
  const body = several ? { resources: resource } : { resource };
  if (limit !== undefined) {
    body.limit = limit;
  } else {
    body.mode = shared ? 'SHARED' : 'EXCLUSIVE';
  }
  if (owner !== undefined) {
    body.owner = owner;
  }
  if (reentrant) {
    body.reentrant = true;
  }
  if (maxHold !== undefined) {
    body.maxHold = formatDuration(maxHold);
  }
  if (minHold !== undefined) {
    body.minHold = formatDuration(minHold);
  }
  if (detachable) {
    body.detachable = true;
  }
  if (once) {
    const { keep, maxAttempts } = once === true ? {} : once;
    body.once = {
      ...(keep === undefined ? {} : { keep: formatDuration(keep) }),
      ...(maxAttempts === undefined ? {} : { maxAttempts }),
    };
  }
  return { body, wait: wait === Infinity ? undefined : wait, what: several ? resource.join(', ') : resource };
}

/** An acquire that attaches is a try: what the handle names is there, or it is not. */
function readAttach(handle, options) {
  check(options, ATTACH);
  const { owner } = options;
  const body = { handle: readHandle(handle), ...(owner === undefined ? {} : { owner }) };
  return { body, wait: 0, what: body.handle };
}

/** A handle, or what has one. Messages do not show it: it is a password. */
function readHandle(value) {
  const handle = value instanceof Detached ? value.handle : value;
  if (typeof handle !== 'string' || handle === '') {
    throw refuse('handle', `handle must be a string that is not empty, or what detach() gave, and not ${handle === '' ? 'an empty one' : typeof handle}`);
  }
  kinds.text('handle', handle);
  return handle;
}

module.exports = { check, checkClient, kinds, readAcquire, readAttach, readHandle, refuse };
