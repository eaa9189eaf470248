package peers;

import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;

/** The workloads, one thread per client. */
final class Bench {
    private static final long HOLD_MS = 1;
    private static final long HANDOFF_HOLD_MS = 5;
    private static final long ERROR_PAUSE_MS = 10;
    private static final long SHUTDOWN_MS = 2000;

    /** One client's counters; others read them only under its monitor. */
    private static final class Worker {
        long[] latencies = new long[1 << 14];
        int ops;
        long opsTotal;
        long errors;
        long holdNs;
        long holds;
        final AtomicLong askedAt = new AtomicLong(-1); // of the pending acquire, -1 when none
    }

    private final String name;
    private final Config config;
    private final long start;
    private long from;
    private long to;
    private volatile boolean over;
    private final AtomicInteger inside = new AtomicInteger();
    private final AtomicLong violations = new AtomicLong();
    private final AtomicLong released = new AtomicLong(-1); // when the last hand-over began
    private final Semaphore[] asking = {new Semaphore(0), new Semaphore(0)};
    private final Semaphore[] got = {new Semaphore(0), new Semaphore(0)};

    Bench(String name, Config config) {
        this.name = name;
        this.config = config;
        this.start = System.nanoTime();
    }

    private long now() {
        return System.nanoTime() - start;
    }

    private boolean inWindow(long t) {
        return t >= from && t < to;
    }

    private void addOp(Worker w, long at, long latency) {
        synchronized (w) {
            w.opsTotal++;
            if (inWindow(at)) {
                if (w.ops == w.latencies.length) {
                    w.latencies = Arrays.copyOf(w.latencies, w.ops * 2);
                }
                w.latencies[w.ops++] = latency;
            }
        }
    }

    private void addError(Worker w) throws InterruptedException {
        if (!over && inWindow(now())) {
            synchronized (w) {
                w.errors++;
            }
        }
        Thread.sleep(ERROR_PAUSE_MS);
    }

    /** Asks until the lock is held, counting the library's failures; false when the run ended first. */
    private boolean acquire(Worker w, LockClient c) throws InterruptedException {
        while (!over) {
            try {
                c.lock();
                return true;
            } catch (Exception e) {
                addError(w);
            }
        }
        return false;
    }

    private boolean release(Worker w, LockClient c) throws InterruptedException {
        try {
            c.unlock();
            return true;
        } catch (Exception e) {
            addError(w);
            return false;
        }
    }

    private void enter() {
        if (inside.incrementAndGet() != 1) {
            violations.incrementAndGet();
        }
    }

    private void uncontended(Worker w, LockClient c) throws InterruptedException {
        while (!over) {
            long asked = now();
            w.askedAt.set(asked);
            if (!acquire(w, c)) {
                return;
            }
            if (!release(w, c)) {
                continue;
            }
            long done = now();
            w.askedAt.set(-1);
            addOp(w, done, done - asked);
        }
    }

    private void contended(Worker w, LockClient c) throws InterruptedException {
        while (!over) {
            long asked = now();
            w.askedAt.set(asked);
            if (!acquire(w, c)) {
                return;
            }
            long held = now();
            w.askedAt.set(-1);
            enter();
            Thread.sleep(HOLD_MS);
            inside.decrementAndGet();
            long left = now();
            synchronized (w) {
                w.holdNs += left - held;
                w.holds++;
            }
            addOp(w, held, held - asked);
            release(w, c);
        }
    }

    private boolean await(Semaphore s) throws InterruptedException {
        while (!over) {
            if (s.tryAcquire(50, TimeUnit.MILLISECONDS)) {
                return true;
            }
        }
        return false;
    }

    private void handoff(Worker w, LockClient c, int me) throws InterruptedException {
        int other = 1 - me;
        if (me == 1 && !await(got[other])) {
            return;
        }
        while (!over) {
            asking[me].release();
            w.askedAt.set(now());
            if (!acquire(w, c)) {
                return;
            }
            long held = now();
            w.askedAt.set(-1);
            enter();
            long r = released.get();
            if (r >= 0) {
                addOp(w, held, held - r);
            }
            got[me].release();
            if (!await(asking[other])) {
                return;
            }
            Thread.sleep(HANDOFF_HOLD_MS);
            inside.decrementAndGet();
            released.set(now());
            release(w, c);
            if (!await(got[other])) {
                return;
            }
        }
    }

    private void client(Worker w, LockClient c, int i) {
        try {
            switch (config.workload()) {
                case "uncontended" -> uncontended(w, c);
                case "contended" -> contended(w, c);
                case "handoff" -> handoff(w, c, i);
                default -> throw new IllegalArgumentException(config.workload());
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private static double cpuSeconds() {
        return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime() / 1e9;
    }

    private void sleepUntil(long t) throws InterruptedException {
        TimeUnit.NANOSECONDS.sleep(t - now());
    }

    /** Opens the instances side by side, as separate processes would. */
    private List<Peer> openAll(Peer.Factory factory) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(config.instances());
        try {
            List<Future<Peer>> opening = new ArrayList<>();
            for (int i = 0; i < config.instances(); i++) {
                opening.add(pool.submit(() -> factory.open(config)));
            }
            List<Peer> peers = new ArrayList<>();
            for (Future<Peer> peer : opening) {
                peers.add(peer.get());
            }
            return peers;
        } finally {
            pool.shutdown();
        }
    }

    String run(Peer.Factory factory) throws Exception {
        List<Peer> peers = openAll(factory);
        from = now() + (long) (config.warmup() * 1e9);
        to = from + (long) (config.seconds() * 1e9);
        List<Worker> workers = new ArrayList<>();
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < config.clients(); i++) {
            int id = i;
            String key = config.workload().equals("uncontended") ? "bench:own:" + i : "bench:one";
            LockClient c = peers.get(i % peers.size()).clients().apply(key);
            Worker w = new Worker();
            workers.add(w);
            Thread t = new Thread(() -> client(w, c, id), "client-" + i);
            t.setDaemon(true);
            threads.add(t);
        }
        threads.forEach(Thread::start);
        sleepUntil(from);
        double cpu = cpuSeconds();
        sleepUntil(to);
        cpu = cpuSeconds() - cpu;
        long end = now();
        long pending = 0;
        for (Worker w : workers) {
            long at = w.askedAt.get();
            if (at >= 0) {
                pending = Math.max(pending, end - at);
            }
        }
        over = true;
        long limit = now() + SHUTDOWN_MS * 1_000_000;
        for (Thread t : threads) {
            t.join(Math.max(1, (limit - now()) / 1_000_000));
        }
        return result(peers.get(0), workers, cpu, pending);
    }

    private String result(Peer peer, List<Worker> workers, double cpu, long pending) {
        long[] all = new long[0];
        long opsTotal = 0;
        long errors = 0;
        long holdNs = 0;
        long holds = 0;
        int starved = 0;
        double squares = 0;
        for (Worker w : workers) {
            synchronized (w) {
                int before = all.length;
                all = Arrays.copyOf(all, before + w.ops);
                System.arraycopy(w.latencies, 0, all, before, w.ops);
                starved += w.ops == 0 ? 1 : 0;
                squares += (double) w.ops * w.ops;
                opsTotal += w.opsTotal;
                errors += w.errors;
                holdNs += w.holdNs;
                holds += w.holds;
            }
        }
        Arrays.sort(all);
        double fairness = squares == 0 ? 0 : (double) all.length * all.length / (config.clients() * squares);
        return String.format(Locale.ROOT,
                "{\"peer\":\"%s\",\"workload\":\"%s\",\"masters\":%d,\"clients\":%d,\"ops_per_s\":%.2f,"
                        + "\"p50_us\":%s,\"p99_us\":%s,\"p999_us\":%s,\"max_us\":%s,\"errors\":%d,\"violations\":%d,"
                        + "\"instances\":%d,\"seconds\":%s,\"ttl_ms\":%d,\"ops\":%d,\"ops_total\":%d,\"starved\":%d,"
                        + "\"fairness\":%.3f,\"hold_us\":%.1f,\"pending_us\":%.1f,\"window_cpu_s\":%.4f,\"note\":\"%s\"}",
                name, config.workload(), peer.masters(), config.clients(), all.length / config.seconds(),
                percentile(all, 0.5), percentile(all, 0.99), percentile(all, 0.999), percentile(all, 1), errors,
                violations.get(), config.instances(), config.seconds(), config.ttlMs(), all.length, opsTotal, starved,
                fairness, holds == 0 ? 0.0 : holdNs / 1000.0 / holds, pending / 1000.0, cpu, peer.note());
    }

    /** The nearest-rank percentile in microseconds, or null. */
    private static String percentile(long[] sorted, double p) {
        if (sorted.length == 0) {
            return "null";
        }
        int i = Math.max(0, (int) Math.ceil(p * sorted.length) - 1);
        return String.format(Locale.ROOT, "%.1f", sorted[i] / 1000.0);
    }
}
