package peers;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.function.BiFunction;
import org.redisson.Redisson;
import org.redisson.RedissonMultiLock;
import org.redisson.RedissonRedLock;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.RedisException;
import org.redisson.config.Config;

/** Redisson's locks, with its defaults; one RedissonClient per master. */
final class RedissonPeers {
    private RedissonPeers() {}

    static Peer single(peers.Config config) {
        return open(config, config.masters().subList(0, 1), (locks, ttl) -> locks[0], "RLock.lock(ttl), pub/sub wait");
    }

    @SuppressWarnings("deprecation") // what the comparison is about
    static Peer redLock(peers.Config config) {
        return open(config, config.masters(), (locks, ttl) -> new RedissonRedLock(locks),
                "RedissonRedLock.lock(ttl), quorum of masters, deprecated by Redisson");
    }

    static Peer multiLock(peers.Config config) {
        return open(config, config.masters(), (locks, ttl) -> new RedissonMultiLock(locks),
                "RedissonMultiLock.lock(ttl), needs every master");
    }

    private static Peer open(peers.Config config, List<String> masters, BiFunction<RLock[], Long, RLock> join,
            String settings) {
        List<RedissonClient> clients = new ArrayList<>();
        boolean lazy = false;
        for (String master : masters) {
            try {
                clients.add(connect(master, false));
            } catch (RedisException e) {
                // Redisson does not start with a master missing, unless told to connect lazily
                clients.add(connect(master, true));
                lazy = true;
            }
        }
        String note = settings + (lazy ? "; create() failed, so lazyInitialization" : "");
        return new Peer(key -> {
            RLock[] locks = clients.stream().map(c -> c.getLock(key)).toArray(RLock[]::new);
            RLock lock = join.apply(locks, config.ttlMs());
            return new LockClient() {
                @Override
                public void lock() {
                    lock.lock(config.ttlMs(), TimeUnit.MILLISECONDS);
                }

                @Override
                public void unlock() {
                    lock.unlock();
                }
            };
        }, masters.size(), note);
    }

    private static RedissonClient connect(String master, boolean lazy) {
        Config c = new Config();
        c.setLazyInitialization(lazy);
        c.useSingleServer().setAddress("redis://" + master);
        return Redisson.create(c);
    }
}
