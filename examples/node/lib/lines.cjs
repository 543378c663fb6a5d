'use strict';

const net = require('node:net');
const { StringDecoder } = require('node:string_decoder');
const { SidecarError, fromConnection } = require('./errors.cjs');

const READ_SIZE = 65_536;
const NEWLINE = 10;

/**
 * Connects to the sidecar, and speaks lines of JSON. `line` gets each that comes;
 * `ended` is called once, with a SidecarError, however the connection ends.
 */
function connect(path, line, ended) {
  let problem;
  let rest = '';
  const takeLine = (text) => {
    try {
      line(JSON.parse(text));
    } catch (err) {
      problem = new SidecarError('SIDECAR_GONE', `what answers at ${path} is no sidecar, or an older one than this client`, { cause: err });
      socket.destroy();
    }
  };
  const take = (chunk) => {
    const text = rest + chunk;
    if (text && text.indexOf('\n') === text.length - 1) { // one line, as most often
      rest = '';
      takeLine(text);
      return;
    }
    const lines = text.split('\n');
    rest = lines.pop();
    for (const one of lines) {
      if (problem) {
        return;
      }
      takeLine(one);
    }
  };
  // A piece that ends with a line ends with a whole character, and needs no decoder unless the one before did.
  let decoder;
  const decode = (n, buffer) => {
    if (!decoder && buffer[n - 1] === NEWLINE) {
      return buffer.toString('utf8', 0, n);
    }
    decoder ??= new StringDecoder('utf8');
    const text = decoder.write(buffer.subarray(0, n));
    if (buffer[n - 1] === NEWLINE) {
      decoder = undefined;
    }
    return text;
  };
  // One buffer for all that comes: Node would make one of 64 KiB each time, and collect it.
  const onread = { buffer: Buffer.allocUnsafeSlow(READ_SIZE), callback: (n, buffer) => take(decode(n, buffer)) };
  const socket = net.connect({ path, onread });
  socket.on('error', (err) => { problem ??= fromConnection(path, err); });
  socket.on('close', () => ended(problem ?? fromConnection(path)));
  return socket;
}

module.exports = { connect };
