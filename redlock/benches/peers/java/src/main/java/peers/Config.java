package peers;

import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** What the common flags say. */
record Config(List<String> masters, String workload, int clients, double seconds, long ttlMs, double warmup,
        int instances) {

    static Config parse(String[] args, int from) {
        Map<String, String> flags = new HashMap<>();
        for (int i = from; i + 1 < args.length; i += 2) {
            if (!args[i].startsWith("--")) {
                throw new IllegalArgumentException("not a flag: " + args[i]);
            }
            flags.put(args[i].substring(2), args[i + 1]);
        }
        String masters = flags.get("masters");
        if (masters == null) {
            throw new IllegalArgumentException("--masters is missing");
        }
        String workload = flags.getOrDefault("workload", "uncontended");
        int clients = workload.equals("handoff") ? 2 : Integer.parseInt(flags.getOrDefault("clients", "1"));
        int instances = switch (workload) {
            case "contended" -> Math.min(clients, 4);
            case "handoff" -> 2;
            default -> 1;
        };
        return new Config(List.of(masters.split(",")), workload, clients,
                Double.parseDouble(flags.getOrDefault("seconds", "5")),
                Long.parseLong(flags.getOrDefault("ttl-ms", "10000")),
                Double.parseDouble(flags.getOrDefault("warmup", "3")),
                Integer.parseInt(flags.getOrDefault("instances", Integer.toString(instances))));
    }
}
