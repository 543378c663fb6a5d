// Sidecars for tests: the real program, on the store that the environment names.
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { spawn } from 'node:child_process';
import fs from 'node:fs';
import http from 'node:http';
import os from 'node:os';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

/** For everything that must happen, however busy the machine is. */
export const PATIENCE = 60_000;

const binary = process.env.LOCKSIDECAR_BINARY ?? fileURLToPath(new URL('../../../bin/locksidecar', import.meta.url));

/** The stores there are: by name, with the URL for the sidecar. */
export const stores = Object.entries({
  redis: process.env.LOCKSIDECAR_TEST_REDIS,
  mysql: process.env.LOCKSIDECAR_TEST_MYSQL,
}).filter(([, url]) => url).map(([name, url]) => ({ name, url, shared: true }));
if (stores.length === 0) {
  stores.push({ name: 'embedded', url: 'embedded:', shared: false });
}

export class Sidecar {
  #child;
  #args;
  #dir = fs.mkdtempSync(path.join(os.tmpdir(), 'ls-'));
  socket = path.join(this.#dir, 's');
  store;

  constructor(store, args) {
    this.store = store;
    this.#args = args;
  }

  /** Starts `count` sidecars that exclude each other; they end with the test. */
  static async start(t, { store = stores[0], count = 1, namespace = randomUUID(), more = ['--ttl', '6s'] } = {}) {
    const args = ['--store', store.url, '--namespace', namespace, ...more];
    const all = [];
    for (let i = 0; i < count; i++) {
      const sidecar = new Sidecar(store, args);
      t.after(() => sidecar.#remove());
      all.push(sidecar);
    }
    await Promise.all(all.map((s) => s.run()));
    return count === 1 ? all[0] : all;
  }

  async run() {
    if (!fs.existsSync(binary)) {
      throw new Error(`there is no ${binary}: run "make build", or name the program in LOCKSIDECAR_BINARY`);
    }
    const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith('LOCKSIDECAR_')));
    const child = spawn(binary, ['serve', '--socket', this.socket, ...this.#args], { env, stdio: ['ignore', 'ignore', 'pipe'] });
    this.#child = child;
    let log = '';
    child.stderr.setEncoding('utf8').on('data', (chunk) => { log += chunk; });
    await eventually('the sidecar is ready', async () => {
      assert.equal(child.exitCode, null, log);
      return (await this.get('/readyz').catch(() => ({}))).status === 200;
    });
  }

  async kill() {
    this.#child?.kill('SIGKILL');
    await this.ended();
  }

  /** Its connections are closed when this returns, and this process has not heard of that. */
  killUnheard() {
    this.#child.kill('SIGKILL');
    const threads = () => fs.readdirSync(`/proc/${this.#child.pid}/task`).length;
    for (const end = Date.now() + PATIENCE; this.#state() !== 'Z' || threads() > 1;) {
      assert.ok(Date.now() < end, 'it does not end');
    }
  }

  #state() {
    return fs.readFileSync(`/proc/${this.#child.pid}/stat`, 'utf8').split(') ').pop()[0];
  }

  async ended() {
    const child = this.#child;
    if (child && child.exitCode === null && child.signalCode === null) {
      await new Promise((resolve) => { child.once('exit', resolve); });
    }
  }

  /** Returns when it has stopped. */
  freeze() {
    this.#child.kill('SIGSTOP');
    for (const end = Date.now() + PATIENCE; this.#state() !== 'T';) {
      assert.ok(Date.now() < end, 'it does not stop');
    }
  }

  thaw() { this.#child.kill('SIGCONT'); }

  /** It drains, and ends. */
  terminate() { this.#child.kill('SIGTERM'); }

  async #remove() {
    await this.kill();
    fs.rmSync(this.#dir, { recursive: true });
  }

  /** One call of the API, past the client. */
  get(url, method = 'GET') {
    return new Promise((resolve, reject) => {
      const request = http.request({ socketPath: this.socket, agent: false, path: url, method }, async (response) => {
        let body = '';
        for await (const chunk of response) {
          body += chunk;
        }
        resolve({ status: response.statusCode, body });
      });
      request.on('error', reject).end();
    });
  }

  // A parked lock has no holder: no app has it.
  async lock(resource) {
    const lock = JSON.parse((await this.get(`/v1/locks/${resource}`)).body);
    return { ...lock, holders: lock.holders.filter((h) => !h.parked) };
  }

  async force(resource, grace = '1s') {
    const { status, body } = await this.get(`/v1/locks/${resource}?grace=${grace}`, 'DELETE');
    assert.equal(status, 200, body);
  }
}

/** Polls for a condition. */
export async function eventually(what, condition) {
  for (const end = Date.now() + PATIENCE; !await condition(); await sleep(5)) {
    assert.ok(Date.now() < end, `in vain: ${what}`);
  }
}

/** The reason with which a signal aborts. */
export async function aborted(signal) {
  await eventually('the lock is lost', () => signal.aborted);
  return signal.reason;
}
