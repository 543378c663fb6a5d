import fs from 'node:fs';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { LockSidecar } from '../index.js';

/** A sidecar whose answers the test makes: `tell` writes an event to the session, and each acquire gets `grant()`. */
export async function scripted(t, opened, grant, options) {
  const socket = path.join(fs.mkdtempSync(path.join(os.tmpdir(), 'lp-')), 's');
  const asked = [];
  let session;
  const say = (m) => session.write(`${JSON.stringify(m)}\n`);
  const server = net.createServer((connection) => {
    session = connection.on('error', () => {});
    createInterface({ input: connection }).on('line', (line) => {
      const { requestId, open, acquire } = JSON.parse(line);
      asked.push(line);
      if (open) {
        say({ requestId, opened: { sessionId: 'x', ...opened } });
      } else if (acquire && grant) {
        say({ requestId, granted: { resource: 'r', mode: 'EXCLUSIVE', fence: '1', ...grant() } });
      }
    });
  });
  await new Promise((resolve) => { server.listen(socket, resolve); });
  const client = new LockSidecar({ socket, ...options });
  t.after(async () => {
    session?.destroy();
    server.close();
    fs.rmSync(path.dirname(socket), { recursive: true });
    await client.close();
  });
  return { client, socket, asked, say, tell: (event) => say({ event }), write: (bytes) => session.write(bytes), hangUp: () => session.destroy() };
}
