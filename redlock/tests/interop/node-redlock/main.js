'use strict';

// A contender that takes a lock by the redlock package over ioredis, in one of its two lines: 4, which npm calls latest,
// and 5, its beta. What it is told and what it reports: see ../protocol.rs.

const { once } = require('node:events');
const fs = require('node:fs');
const path = require('node:path');
const readline = require('node:readline');
const { setTimeout: sleep } = require('node:timers/promises');
const { parseArgs } = require('node:util');
const Redis = require('ioredis');

/** Attempts of one call before orders are looked at again. */
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
  // Which calls fail is the library's to judge; that a master is away is nothing to tell.
  master.on('error', () => {});
  return master;
});

/** Takes the lock, in so many attempts. */
const lock = {
  4: (tries) => {
    const Redlock = require('redlock4');
    const redlock = new Redlock(masters, { retryCount: tries - 1, retryDelay: PAUSE, retryJitter: JITTER });
    redlock.on('clientError', () => {});
    return redlock.lock(flags.key, ttl);
  },
  5: async (tries) => {
    const { default: Redlock } = require('redlock5');
    // Its own retries keep what an attempt got on a minority of masters, and are blocked by that until it expires. So
    // each call is one attempt, which gives back what it got.
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
 * End of the lock's validity on the machine's monotonic clock. That is read first: whatever sleeps between the two
 * makes the claim shorter, never longer.
 */
const until = (held) => {
  const now = clock();
  return now + BigInt(Math.round((held.expiration - Date.now()) * 1e6));
};

/** Writes a line at once: it has left when the process is killed. */
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

/** Extends the lock as ordered, until it shall be released. */
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

/** What the lock is for: reports when it begins and ends, and the library's word on how long it is held. */
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

/** Answers whether to go on. */
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

/** Waits until each master is connected, or has failed to be, or hangs. */
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
    // Others shall have a turn. One that claims sections without the lock needs none.
    if (!flags.unlocked) await sleep(random() * 300);
  }
}

main();
