// Prints the median µs of a pair of acquire and release, and its processor time: pairs.js client|client-floor SOCKET PAIRS
const net = require('node:net');
const { LockSidecar } = require('../node');

function client(socket) {
  const sidecar = new LockSidecar({ socket, name: 'pace' });
  return { pair: async () => (await sidecar.acquire('pace')).release(), close: () => sidecar.close() };
}

/** Two lines there and back over a bare socket. */
function floor(path) {
  const socket = net.connect({ path });
  socket.setEncoding('utf8');
  let done;
  socket.on('data', (text) => { if (text.endsWith('\n')) done(); });
  const line = `${'x'.repeat(127)}\n`;
  const trip = () => new Promise((resolve) => { done = resolve; socket.write(line); });
  return { pair: async () => { await trip(); await trip(); }, close: () => socket.destroy() };
}

async function main(kind, socket, n) {
  const { pair, close } = (kind === 'client' ? client : floor)(socket);
  for (let i = 0; i < n / 2; i++) {
    await pair(); // warm
  }
  const took = new Float64Array(n);
  const before = process.cpuUsage();
  for (let i = 0; i < n; i++) {
    const began = performance.now();
    await pair();
    took[i] = performance.now() - began;
  }
  const { user, system } = process.cpuUsage(before);
  console.log(took.sort()[n >> 1] * 1e3, (user + system) / n);
  await close();
}

main(process.argv[2], process.argv[3], Number(process.argv[4]));
