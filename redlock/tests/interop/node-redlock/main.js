'use strict';

// A contender that acquires a lock by the redlock package over ioredis, in version 4, which npm calls latest, or 5, its
// beta. Its orders and reports: see ../protocol.rs.

const { once } = require('node:events');
const fs = require('node:fs');
const path = require('node:path');
const readline = require('node:readline');
const { setTimeout: sleep } = require('node:timers').promises;
const { parseArgs } = require('node:util');
const Redis = require('ioredis');

/** Attempts of one call before orders are read again. */
const TRIES = 8;
/** The package's own pause between attempts, in ms, and how much it varies. */
const [PAUSE, JITTER] = [200, 100];

const { values: flags } = parseArgs({
  options: {
    masters: { type: 'string' },
    secret: { type: 'string' },
    key: { type: 'string' },
    ttl: { type: 'string' },
    seed: { type: 'string', default: '0' },
    line: { type: 'string', default: '4' },
    unlocked: { type: 'boolean', default: false },
  },
});
const ttl = Number.parseInt(flags.ttl, 10);

const secret = (file) => fs.readFileSync(path.join(flags.secret, file), 'utf8');

const masters = flags.masters.split(',').map((address) => {
  const [host, port] = address.split(':');
  const master = new Redis({
    host,
    port: Number(port),
    username: secret('username'),
    password: secret('password'),
    // Without these a call to a master that is down or hangs waits until it is back.
    commandTimeout: ttl / 4,
    enableOfflineQueue: false,
    maxRetriesPerRequest: 0,
    retryStrategy: () => 100,
  });
  // The library judges which calls fail. A master that is down is expected, and not logged.
  master.on('error', () => {});
  return master;
});

/** Acquires the lock, in at most so many attempts. */
const lock = {
  4: (tries) => {
    const Redlock = require('redlock4');
    const redlock = new Redlock(masters, { retryCount: tries - 1, retryDelay: PAUSE, retryJitter: JITTER });
    redlock.on('clientError', () => {});
    return redlock.lock(flags.key, ttl);
  },
  5: async (tries) => {
    const { default: Redlock } = require('redlock5');
    // Its own retries keep the keys that an attempt set on a minority of masters, and are blocked by them until they
    // expire. So each call is one attempt, which releases its keys.
    const redlock = new Redlock(masters, { retryCount: 0 });
    for (let left = tries - 1; ; left--) {
      try {
        return await redlock.acquire([flags.key], ttl);
      } catch (error) {
        if (left === 0) throw error;
      }
      await sleep(PAUSE + (Math.random() * 2 - 1) * JITTER);
    }
  },
}[flags.line];
const release = (held) => (flags.line === '4' ? held.unlock() : held.release());

const clock = () => process.hrtime.bigint();

/**
 * End of the lock's validity on the machine's monotonic clock. The clock is read first: a pause between the two readings
 * makes the claim shorter, never longer.
 */
const until = (held) => {
  const now = clock();
  return now + BigInt(Math.round((held.expiration - Date.now()) * 1e6));
};

/** Writes a line at once, so that it arrives even if the process is killed right after it. */
const report = (...words) => fs.writeSync(1, `${words.join(' ')}\n`);

/** Numbers from 0 to 1, drawn from the seed (mulberry32). */
let state = Number.parseInt(flags.seed, 10) | 0;
const random = () => {
  state = (state + 0x6d2b79f5) | 0;
  let t = Math.imul(state ^ (state >>> 15), 1 | state);
  t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
  return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
};

const orders = [];
let ordered = () => {};
const input = readline.createInterface({ input: process.stdin });
const order = (line) => {
  orders.push(line);
  ordered();
};
input.on('line', order);
input.on('close', () => order('end'));

/** The next order, once there is one. */
const nextOrder = async () => {
  while (orders.length === 0) await new Promise((resolve) => (ordered = resolve));
  return orders.shift();
};

let contends = false;
let keeps = false;

async function extend(held) {
  try {
    const extended = await held.extend(ttl);
    report('extended', clock(), until(extended));
    return extended;
  } catch {
    report('not-extended');
    return held;
  }
}

/** Extends the lock as ordered, until the order to release it. */
async function untilReleased(held) {
  for (;;) {
    switch (await nextOrder()) {
      case 'extend':
        held = await extend(held);
        break;
      case 'end':
        order('end');
        return held;
      case 'release':
        return held;
    }
  }
}

/** A section: reports its beginning and end, and how long the library says that the lock is held. */
async function section(held) {
  report('start', clock(), until(held), held.value);
  if (keeps) {
    keeps = false;
    report('kept');
    held = await untilReleased(held);
  } else if (!flags.unlocked && random() < 1 / 32) {
    await sleep(ttl / 4);
    held = await extend(held);
    await sleep(ttl / 4);
  } else {
    await sleep(1 + random() * 12);
  }
  report('end', clock());
  if (flags.unlocked) return;
  report('released', await release(held).then(() => true, () => false));
}

/** Obeys an order, and returns whether to go on. */
async function obey(line) {
  switch (line) {
    case 'clock':
      report('clock', clock());
      break;
    case 'contend':
      contends = true;
      break;
    case 'keep':
      keeps = true;
      break;
    case 'try': {
      const held = await lock(1).catch(() => null);
      if (held === null) {
        report('denied');
      } else {
        keeps = true;
        await section(held);
      }
      break;
    }
    case 'end':
      return false;
  }
  return true;
}

/** Waits until each master is connected, has refused the connection, or hangs. */
function connected() {
  const settled = (master) => Promise.race([once(master, 'ready').catch(() => {}), sleep(500)]);
  return Promise.all(masters.map(settled));
}

async function main() {
  await connected();
  for (;;) {
    while (!contends || orders.length > 0) {
      if (!(await obey(await nextOrder()))) process.exit(0);
    }
    const held = flags.unlocked
      ? { expiration: Date.now() + ttl, value: 'unlocked' }
      : await lock(TRIES).catch(() => null);
    while (orders.length > 0) {
      if (!(await obey(orders.shift()))) process.exit(0);
    }
    if (held === null) continue;
    await section(held);
    // Lets others have a turn. A contender that claims sections without the lock needs no rest.
    if (!flags.unlocked) await sleep(random() * 300);
  }
}

main();
