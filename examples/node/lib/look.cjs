'use strict';

const { setTimeout: sleep } = require('node:timers/promises');
const { now } = require('./clock.cjs');
const { IncompleteError, SidecarError, fromStatus, passes, takesNone } = require('./errors.cjs');
const { connect } = require('./lines.cjs');

const LIMIT = 10_000;
// No answer takes so much longer, whatever grace the app gives; and a timer has 31 bits.
const LONGEST = 3_600_000;
const ONCE_ONLY = ['forceRelease', 'releaseHandle', 'resetOutcome'];

/**
 * A question on a connection of its own, without a session, and all its answers. The connection ends with the
 * iteration. return() ends that at once, also while somebody waits for the next answer.
 */
function stream(...question) {
  const came = [];
  let wake = () => {};
  const tell = (one) => {
    came.push(one);
    wake();
  };
  const next = async () => {
    while (came.length === 0) {
      await new Promise((resolve) => { wake = resolve; });
    }
    return came.shift();
  };
  const all = answers(tell, next, ...question);
  const end = all.return.bind(all); // which Node carries out when the generator yields
  all.return = (value) => {
    came.length = 0;
    tell({ over: true });
    return end(value);
  };
  return all;
}

async function* answers(tell, next, path, kind, body, answer, limit) {
  const lines = connect(path, tell, (err) => tell({ failed: err }));
  const timer = limit && setTimeout(() => {
    tell({ failed: new SidecarError('SIDECAR_SILENT', `the sidecar at ${path} did not answer within ${limit} ms; it may be frozen`) });
  }, limit);
  lines.write(`${JSON.stringify({ requestId: '1', [kind]: body })}\n`);
  try {
    for (;;) {
      const { over, failed, error, [answer]: found } = await next();
      if (over) {
        return;
      }
      if (failed) {
        throw failed.again();
      }
      if (error) {
        throw fromStatus(error);
      }
      yield found;
    }
  } finally {
    clearTimeout(timer);
    lines.destroy();
  }
}

/** One question, whose answer may take so many milliseconds more than others. A sidecar that hangs up without a word, as it does to make room, is asked again for a while. */
async function ask(path, kind, body, answer, more = 0) {
  const end = now() + LIMIT;
  for (let pause = 10; ; pause = Math.min(2 * pause, 500)) {
    try {
      for await (const found of stream(path, kind, body, answer, LIMIT + Math.min(more, LONGEST))) {
        return found;
      }
    } catch (err) {
      if (!passes(err) || (ONCE_ONLY.includes(kind) && !takesNone(err)) || now() + pause > end) {
        throw err;
      }
    }
    await sleep(pause);
  }
}

/** What a list has, page by page. IncompleteError, after that: some shards did not answer, maybe for some pages only. */
async function* pages(path, kind, body, answer) {
  const missing = new Set();
  let pageToken = '';
  do {
    const page = await ask(path, kind, { ...body, partial: true, pageSize: 1000, pageToken }, answer);
    yield* page[answer];
    page.missingShards?.forEach((shard) => missing.add(shard));
    pageToken = page.nextPageToken;
  } while (pageToken);
  if (missing.size > 0) {
    throw new IncompleteError([...missing].sort());
  }
}

module.exports = { ask, pages, stream };
