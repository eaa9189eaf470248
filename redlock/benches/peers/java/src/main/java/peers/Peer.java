package peers;

import java.util.function.Function;

/**
 * One opened instance of a lock library, as one application process would hold it.
 *
 * @param clients makes a client for a key
 * @param masters how many masters the library uses
 * @param note the settings in force
 */
record Peer(Function<String, LockClient> clients, int masters, String note) {
    interface Factory {
        Peer open(Config config) throws Exception;
    }
}
