'use strict';

// Runs the redlock package over N ioredis connections with the common flags.

const { parseArgs } = require('node:util');
const { performance } = require('node:perf_hooks');
const Redis = require('ioredis');

const HOLD_MS = 1;
const HANDOFF_HOLD_MS = 5;
const ERROR_PAUSE_MS = 10;
const SHUTDOWN_MS = 2000;

const peers = {
  redlock4: {
    note: 'redlock 4.2.0, defaults: 10 retries, 200+-100 ms, waits for all masters',
    open(servers, ttl) {
      const Redlock = require('redlock4');
      const redlock = new Redlock(servers);
      redlock.on('clientError', () => {});
      return (key) => client(() => redlock.lock(key, ttl), (lock) => lock.unlock());
    },
  },
  redlock5: {
    note: 'redlock 5.0.0-beta.2, defaults: 10 retries, 200+-100 ms, returns at quorum',
    open(servers, ttl) {
      const { default: Redlock } = require('redlock5');
      const redlock = new Redlock(servers);
      return (key) => client(() => redlock.acquire([key], ttl), (lock) => lock.release());
    },
  },
};

/** One client's end of the library: remembers the lock that it holds. */
function client(acquire, release) {
  let held = null;
  return {
    async lock() {
      held = await acquire();
    },
    async unlock() {
      const lock = held;
      held = null;
      await release(lock);
    },
  };
}

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** A one-slot signal between the two hand-over clients. */
class Signal {
  #set = false;
  #wake = null;
  raise() {
    this.#set = true;
    if (this.#wake) this.#wake();
  }
  async wait(ended) {
    if (!this.#set) {
      await Promise.race([new Promise((resolve) => (this.#wake = resolve)), ended]);
    }
    this.#wake = null;
    const was = this.#set;
    this.#set = false;
    return was;
  }
}

class Bench {
  constructor(config) {
    this.config = config;
    this.over = false;
    this.inside = 0;
    this.violations = 0;
    this.released = -1;
    this.asking = [new Signal(), new Signal()];
    this.got = [new Signal(), new Signal()];
    this.ended = new Promise((resolve) => (this.end = resolve));
    this.workers = [];
  }

  addOp(w, at, latency) {
    w.opsTotal++;
    if (at >= this.from && at < this.to) w.latencies.push(latency);
  }

  async addError(w) {
    const at = performance.now();
    if (!this.over && at >= this.from && at < this.to) w.errors++;
    await sleep(ERROR_PAUSE_MS);
  }

  /** Asks until the lock is held, counting the library's failures; false when the run ended first. */
  async acquire(w, c) {
    while (!this.over) {
      try {
        await c.lock();
        return true;
      } catch {
        await this.addError(w);
      }
    }
    return false;
  }

  async release(w, c) {
    try {
      await c.unlock();
      return true;
    } catch {
      await this.addError(w);
      return false;
    }
  }

  enter() {
    if (++this.inside !== 1) this.violations++;
  }

  async uncontended(w, c) {
    while (!this.over) {
      const asked = performance.now();
      w.askedAt = asked;
      if (!(await this.acquire(w, c))) return;
      if (!(await this.release(w, c))) continue;
      const done = performance.now();
      w.askedAt = -1;
      this.addOp(w, done, done - asked);
    }
  }

  async contended(w, c) {
    while (!this.over) {
      const asked = performance.now();
      w.askedAt = asked;
      if (!(await this.acquire(w, c))) return;
      const held = performance.now();
      w.askedAt = -1;
      this.enter();
      await sleep(HOLD_MS);
      this.inside--;
      w.hold += performance.now() - held;
      w.holds++;
      this.addOp(w, held, held - asked);
      await this.release(w, c);
    }
  }

  async handoff(w, c, me) {
    const other = 1 - me;
    if (me === 1 && !(await this.got[other].wait(this.ended))) return;
    while (!this.over) {
      this.asking[me].raise();
      w.askedAt = performance.now();
      if (!(await this.acquire(w, c))) return;
      const held = performance.now();
      w.askedAt = -1;
      this.enter();
      if (this.released >= 0) this.addOp(w, held, held - this.released);
      this.got[me].raise();
      if (!(await this.asking[other].wait(this.ended))) return;
      await sleep(HANDOFF_HOLD_MS);
      this.inside--;
      this.released = performance.now();
      await this.release(w, c);
      if (!(await this.got[other].wait(this.ended))) return;
    }
  }

  async run(name, makers) {
    const { workload, clients, seconds, warmup } = this.config;
    this.from = performance.now() + warmup * 1000;
    this.to = this.from + seconds * 1000;
    const running = [];
    for (let i = 0; i < clients; i++) {
      const key = workload === 'uncontended' ? `bench:own:${i}` : 'bench:one';
      const w = { latencies: [], opsTotal: 0, errors: 0, hold: 0, holds: 0, askedAt: -1 };
      this.workers.push(w);
      running.push(this[workload](w, makers[i % makers.length](key), i));
    }
    await sleep(this.from - performance.now());
    const before = process.cpuUsage();
    await sleep(this.to - performance.now());
    const used = process.cpuUsage(before);
    const end = performance.now();
    const pending = Math.max(0, ...this.workers.map((w) => (w.askedAt < 0 ? 0 : end - w.askedAt)));
    this.over = true;
    this.end();
    await Promise.race([Promise.all(running), sleep(SHUTDOWN_MS)]);
    return this.result(name, (used.user + used.system) / 1e6, pending);
  }

  result(name, cpu, pending) {
    const { workload, clients, seconds, ttl, masters, instances } = this.config;
    const all = Float64Array.from(this.workers.flatMap((w) => w.latencies)).sort();
    const sum = (field) => this.workers.reduce((total, w) => total + w[field], 0);
    const squares = this.workers.reduce((total, w) => total + w.latencies.length ** 2, 0);
    const us = (ms) => Math.round(ms * 10000) / 10;
    const percentile = (p) => (all.length ? us(all[Math.max(0, Math.ceil(p * all.length) - 1)]) : null);
    return {
      peer: name,
      workload,
      masters: masters.length,
      clients,
      ops_per_s: all.length / seconds,
      p50_us: percentile(0.5),
      p99_us: percentile(0.99),
      p999_us: percentile(0.999),
      max_us: percentile(1),
      errors: sum('errors'),
      violations: this.violations,
      instances,
      seconds,
      ttl_ms: ttl,
      ops: all.length,
      ops_total: sum('opsTotal'),
      starved: this.workers.filter((w) => w.latencies.length === 0).length,
      fairness: squares ? Math.round((all.length ** 2 / (clients * squares)) * 1000) / 1000 : 0,
      hold_us: sum('holds') ? us(sum('hold') / sum('holds')) : 0,
      pending_us: us(pending),
      window_cpu_s: cpu,
      note: peers[name].note,
    };
  }
}

function parse(argv) {
  const { values, positionals } = parseArgs({
    args: argv,
    allowPositionals: true,
    options: {
      masters: { type: 'string' },
      workload: { type: 'string', default: 'uncontended' },
      clients: { type: 'string', default: '1' },
      seconds: { type: 'string', default: '5' },
      'ttl-ms': { type: 'string', default: '10000' },
      warmup: { type: 'string', default: '1' },
      instances: { type: 'string' },
    },
  });
  const name = positionals[0];
  if (!peers[name] || !values.masters || !['uncontended', 'contended', 'handoff'].includes(values.workload)) {
    console.error(`usage: bench.js ${Object.keys(peers).join('|')} --masters host:port,... [flags]`);
    process.exit(2);
  }
  const clients = values.workload === 'handoff' ? 2 : Number(values.clients);
  const instances = { contended: Math.min(clients, 4), handoff: 2 }[values.workload] ?? 1;
  return {
    name,
    masters: values.masters.split(','),
    workload: values.workload,
    clients,
    seconds: Number(values.seconds),
    ttl: Number(values['ttl-ms']),
    warmup: Number(values.warmup),
    instances: Number(values.instances ?? instances),
  };
}

async function main() {
  const config = parse(process.argv.slice(2));
  const makers = [];
  for (let i = 0; i < config.instances; i++) {
    const servers = config.masters.map((master) => {
      const [host, port] = master.split(':');
      const redis = new Redis({ host, port: Number(port) });
      redis.on('error', () => {});
      return redis;
    });
    makers.push(peers[config.name].open(servers, config.ttl));
  }
  const result = await new Bench(config).run(config.name, makers);
  process.stdout.write(`${JSON.stringify(result)}\n`, () => process.exit(0));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
