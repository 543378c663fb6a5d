// A socket before a sidecar's, which can hang up and withhold news.
import fs from 'node:fs';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import readline from 'node:readline';

export class Relay {
  #server;
  #connections = new Set();
  socket;
  hungUp = 0;
  withheld = 0;
  counted = 0;

  /**
   * Hangs up on the first calls, as a sidecar does to make room, on every other after it has read something.
   * Withholds the sidecar's lines whose event has the field `without`, and counts those that contain `counts`.
   */
  static async start(t, sidecar, { hangUp = 0, without, counts } = {}) {
    const relay = new Relay();
    const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'lr-'));
    relay.socket = path.join(dir, 's');
    relay.#server = net.createServer({ allowHalfOpen: true }, (app) => {
      app.on('error', () => {});
      if (relay.hungUp < hangUp) {
        relay.hungUp++;
        if (relay.hungUp % 2) {
          app.destroy();
        } else {
          app.once('data', () => app.destroy());
        }
        return;
      }
      relay.#connect(app, sidecar, without, counts);
    });
    await new Promise((resolve) => { relay.#server.listen(relay.socket, resolve); });
    t.after(() => {
      relay.#server.close();
      fs.rmSync(dir, { recursive: true, force: true });
    });
    return relay;
  }

  /** Ends what is connected, and takes no more calls: the sidecar seems to be gone. */
  hangUp() {
    this.#server.close();
    this.cut();
  }

  /** Ends what is connected. */
  cut() {
    this.#connections.forEach((app) => app.destroy());
  }

  #connect(app, sidecar, without, counts) {
    this.#connections.add(app);
    const behind = net.connect({ path: sidecar.socket, allowHalfOpen: true });
    behind.on('error', () => app.destroy());
    app.on('close', () => {
      this.#connections.delete(app);
      behind.destroy();
    });
    behind.on('close', () => app.destroy());
    app.pipe(behind);
    if (without || counts) {
      readline.createInterface({ input: behind }).on('line', (line) => {
        if (without && JSON.parse(line).event?.[without] !== undefined) {
          this.withheld++;
        } else {
          app.write(`${line}\n`);
          this.counted += counts && line.includes(counts) ? 1 : 0;
        }
      });
    } else {
      behind.pipe(app);
    }
  }
}
