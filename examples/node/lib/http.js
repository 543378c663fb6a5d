import http from 'node:http';
import { SidecarError, fromConnection, fromStatus } from './errors.js';

/** How long the sidecar may take for what it answers at once. */
export const ANSWER_LIMIT = 5_000;

// The sidecar closes connections that were idle for two minutes.
const IDLE_LIMIT = 30_000;

export function newAgent() {
  return new http.Agent({ keepAlive: true, timeout: IDLE_LIMIT });
}

/**
 * Sends one request and gives the JSON of its answer. A SidecarError with
 * `answered` is the sidecar's own word; after any other it may or may not have
 * carried the request out.
 */
export function call(socketPath, agent, method, path, { body, limit = ANSWER_LIMIT, signal } = {}) {
  const options = { socketPath, agent, method, path };
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    const request = send(options, body);
    const timer = limit === Infinity ? undefined : setTimeout(() => {
      end(new SidecarError('SIDECAR_SILENT', `the sidecar at ${socketPath} did not answer within ${limit} ms`));
    }, limit);
    const aborted = () => end(signal.reason);
    signal?.addEventListener('abort', aborted, { once: true });
    const settled = () => {
      clearTimeout(timer);
      signal?.removeEventListener('abort', aborted);
    };
    const end = (err) => {
      settled();
      reject(err);
      request.destroy();
    };
    request.on('error', (err) => end(fromConnection(socketPath, err)));
    request.on('response', (response) => {
      text(response).then((answer) => {
        settled();
        if (response.statusCode === 200) {
          resolve(JSON.parse(answer));
        } else {
          reject(refused(answer));
        }
      }).catch((err) => end(fromConnection(socketPath, err)));
    });
  });
}

/**
 * Sends a request whose answer is lines of JSON, on a connection of its own.
 * `line` gets each, and `ended` is called once, with the error if there was one.
 */
export function stream(socketPath, path, body, line, ended) {
  const request = send({ socketPath, agent: false, method: 'POST', path }, body);
  let problem;
  let refusal; // being read
  request.on('error', (err) => { problem ??= fromConnection(socketPath, err); });
  request.on('response', (response) => {
    if (response.statusCode !== 200) {
      refusal = text(response).then((answer) => { problem = refused(answer); }, () => {});
      return;
    }
    let rest = '';
    response.setEncoding('utf8').on('data', (chunk) => {
      const lines = (rest + chunk).split('\n');
      rest = lines.pop();
      lines.forEach((l) => line(JSON.parse(l)));
    });
    response.on('error', () => {}); // the end tells it
  });
  request.on('close', async () => { // however it ends
    await refusal;
    ended(problem);
  });
  return request;
}

function send(options, body) {
  const payload = body === undefined ? '' : JSON.stringify(body);
  const request = http.request({
    ...options,
    headers: { Host: 'locksidecar', 'Content-Type': 'application/json', 'Content-Length': Buffer.byteLength(payload) },
  });
  request.end(payload);
  return request;
}

async function text(response) {
  let all = '';
  for await (const chunk of response.setEncoding('utf8')) {
    all += chunk;
  }
  return all;
}

function refused(answer) {
  const err = fromStatus(JSON.parse(answer));
  err.answered = true;
  return err;
}
