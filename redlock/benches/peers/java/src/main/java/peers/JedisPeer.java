package peers;

import java.util.List;
import java.util.UUID;
import java.util.concurrent.ThreadLocalRandom;
import redis.clients.jedis.ConnectionPoolConfig;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.params.SetParams;

/** The lock that people write by hand: SET NX PX, and a compare-and-delete script, on one master. */
final class JedisPeer {
    private static final String RELEASE =
            "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0";
    private static final int MIN_DELAY_MS = 50;
    private static final int MAX_DELAY_MS = 100;

    private JedisPeer() {}

    static Peer open(Config config) {
        String[] master = config.masters().get(0).split(":");
        ConnectionPoolConfig pool = new ConnectionPoolConfig();
        pool.setMaxTotal(Math.max(8, config.clients()));
        pool.setMaxIdle(Math.max(8, config.clients()));
        RedisClient redis =
                RedisClient.builder().hostAndPort(master[0], Integer.parseInt(master[1])).poolConfig(pool).build();
        SetParams params = SetParams.setParams().nx().px(config.ttlMs());
        return new Peer(key -> new LockClient() {
            private String token;

            @Override
            public void lock() throws InterruptedException {
                String mine = UUID.randomUUID().toString();
                while (redis.set(key, mine, params) == null) {
                    Thread.sleep(ThreadLocalRandom.current().nextInt(MIN_DELAY_MS, MAX_DELAY_MS));
                }
                token = mine;
            }

            @Override
            public void unlock() {
                if (!Long.valueOf(1).equals(redis.eval(RELEASE, List.of(key), List.of(token)))) {
                    throw new IllegalStateException("was not held");
                }
            }
        }, 1, "retry without limit after 50-100 ms random; pool as large as the clients");
    }
}
