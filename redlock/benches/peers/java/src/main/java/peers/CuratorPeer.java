package peers;

import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;

/** Curator's InterProcessMutex; the masters are ZooKeeper servers. */
final class CuratorPeer {
    private static final int CONNECT_MS = 15_000;

    private CuratorPeer() {}

    static Peer open(Config config) throws Exception {
        CuratorFramework curator = CuratorFrameworkFactory.newClient(String.join(",", config.masters()),
                (int) config.ttlMs(), CONNECT_MS, new ExponentialBackoffRetry(1000, 3));
        curator.start();
        curator.blockUntilConnected();
        return new Peer(key -> {
            InterProcessMutex mutex = new InterProcessMutex(curator, "/bench/" + key.replace(':', '-'));
            return new LockClient() {
                @Override
                public void lock() throws Exception {
                    mutex.acquire();
                }

                @Override
                public void unlock() throws Exception {
                    mutex.release();
                }
            };
        }, config.masters().size(), "InterProcessMutex; the session ends after ttl-ms; fair queue; ZooKeeper syncs to disk");
    }
}
