'use strict';

const { setTimeout: sleep } = require('node:timers/promises');
const { now } = require('./clock.cjs');
const { SidecarError, fromStatus } = require('./errors.cjs');
const { connect } = require('./lines.cjs');

const LIMIT = 10_000;
const ONCE_ONLY = ['forceRelease', 'releaseHandle', 'resetOutcome'];

/** A question on a connection of its own, without a session, and all its answers. The connection ends with the iteration. */
async function* stream(path, kind, body, answer, limit) {
  const came = [];
  let wake = () => {};
  const tell = (one) => {
    came.push(one);
    wake();
  };
  const lines = connect(path, (m) => tell(m), (err) => tell({ failed: err }));
  const timer = limit && setTimeout(() => {
    tell({ failed: new SidecarError('SIDECAR_SILENT', `the sidecar at ${path} did not answer within ${limit} ms; it may be frozen`) });
  }, limit);
  lines.write(`${JSON.stringify({ requestId: '1', [kind]: body })}\n`);
  try {
    for (;;) {
      while (came.length === 0) {
        await new Promise((resolve) => { wake = resolve; });
      }
      const { failed, error, [answer]: found } = came.shift();
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

/** One question. A sidecar that hangs up without a word, as it does to make room, is asked again for a while. */
async function ask(path, kind, body, answer) {
  const end = now() + LIMIT;
  for (let pause = 10; ; pause = Math.min(2 * pause, 500)) {
    try {
      for await (const found of stream(path, kind, body, answer, LIMIT)) {
        return found;
      }
    } catch (err) {
      if (err.reason !== 'SIDECAR_GONE' || ONCE_ONLY.includes(kind) || now() + pause > end) {
        throw err;
      }
    }
    await sleep(pause);
  }
}

/** What a list has, page by page. */
async function* pages(path, kind, body, answer) {
  for (let pageToken = ''; ;) {
    const page = await ask(path, kind, { ...body, pageSize: 1000, pageToken }, answer);
    yield* page[answer];
    pageToken = page.nextPageToken;
    if (!pageToken) {
      return;
    }
  }
}

module.exports = { ask, pages, stream };
