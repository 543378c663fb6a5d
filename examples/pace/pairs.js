// Prints the median µs of a pair of acquire and release, and its processor time: pairs.js client|client-hand|client-floor SOCKET PAIRS
const net = require('node:net');
const { LockSidecar } = require('../node');

function client(socket) {
  const sidecar = new LockSidecar({ socket, name: 'pace' });
  return { pair: async () => (await sidecar.acquire('pace')).release(), close: () => sidecar.close() };
}

/** A bare socket: `ask` sends a line, and gives what has come back when a line with that word is there. News may come before it. */
function bare(path) {
  const socket = net.connect({ path });
  socket.setEncoding('utf8');
  let done;
  let word;
  let said;
  socket.on('data', (text) => {
    said += text;
    if (said.endsWith('\n') && said.includes(word)) {
      done(said);
    }
  });
  const ask = (line, answer) => new Promise((resolve) => {
    [done, word, said] = [resolve, answer, ''];
    socket.write(line);
  });
  return { ask, close: () => socket.destroy() };
}

/** The same by hand: the fewest steps in which this language can do it at the sidecar. */
function hand(path) {
  const { ask, close } = bare(path);
  const open = ask('{"requestId":"0","open":{"name":"pace"}}\n', 'opened');
  let number = 0;
  const pair = async () => {
    await open;
    const granted = await ask(`{"requestId":"${++number}","acquire":{"resource":"pace","owner":"hand"}}\n`, 'granted');
    const at = granted.indexOf('"lockId":"') + 10;
    await ask(`{"requestId":"${++number}","release":{"lockId":"${granted.slice(at, granted.indexOf('"', at))}"}}\n`, 'released');
  };
  return { pair, close };
}

/** Two lines there and back over a bare socket. */
function floor(path) {
  const { ask, close } = bare(path);
  const line = `${'x'.repeat(127)}\n`;
  return { pair: async () => { await ask(line, 'x'); await ask(line, 'x'); }, close };
}

async function main(kind, socket, n) {
  const { pair, close } = { client, 'client-hand': hand, 'client-floor': floor }[kind](socket);
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
