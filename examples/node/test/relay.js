// A socket before a sidecar's, on which calls can go wrong.
import fs from 'node:fs';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';

export class Relay {
  #server;
  socket;
  hungUp = 0;
  heads = []; // the first line of each request
  lose = () => false; // whether the answer to a request is lost; asked once each
  evict = () => false; // the same of the request, with its connection, as to make room for the next

  /** Hangs up on the first calls, as a sidecar does to make room, on every other after it has read something. */
  static async start(t, sidecar, hangUp = 0) {
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
      relay.#connect(app, sidecar);
    });
    await new Promise((resolve) => { relay.#server.listen(relay.socket, resolve); });
    t.after(() => {
      relay.#server.close();
      fs.rmSync(dir, { recursive: true, force: true });
    });
    return relay;
  }

  /** Takes no more calls: the sidecar seems to be gone. */
  refuse() {
    this.#server.close();
  }

  #connect(app, sidecar) {
    const behind = net.connect({ path: sidecar.socket, allowHalfOpen: true });
    let lost = false;
    behind.on('error', () => app.destroy());
    app.on('data', (data) => {
      const head = data.toString('latin1').split('\r\n', 1)[0];
      if (head.endsWith(' HTTP/1.1')) {
        this.heads.push(head);
        if (this.evict(head)) {
          app.destroy();
          return;
        }
        lost ||= this.lose(head);
      }
      behind.write(data);
    }).on('end', () => behind.end()).on('close', () => behind.destroy());
    behind.on('data', (data) => {
      if (lost) {
        app.destroy();
      } else {
        app.write(data);
      }
    }).on('end', () => app.end()).on('close', () => app.destroy());
  }
}
