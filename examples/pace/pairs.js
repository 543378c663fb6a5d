// Prints the nanoseconds of a pair of acquire and release: pairs.js SOCKET PAIRS
const { LockSidecar } = require('../node');

async function pairs(client, n) {
  for (let i = 0; i < n; i++) {
    await (await client.acquire('pace')).release();
  }
}

async function main(socket, n) {
  const client = new LockSidecar({ socket, name: 'pace' });
  await pairs(client, n / 10); // warm
  const began = process.hrtime.bigint();
  await pairs(client, n);
  console.log(Number(process.hrtime.bigint() - began) / n);
  await client.close();
}

main(process.argv[2], Number(process.argv[3]));
