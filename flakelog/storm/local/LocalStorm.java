import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.file.Files;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.TimeUnit;
import java.util.logging.Level;
import java.util.logging.Logger;
import org.apache.logging.log4j.LogManager;
import org.apache.logging.log4j.core.config.Configurator;
import org.apache.storm.Config;
import org.apache.storm.LocalCluster;
import org.apache.storm.flux.FluxBuilder;
import org.apache.storm.flux.model.BoltDef;
import org.apache.storm.flux.model.ExecutionContext;
import org.apache.storm.flux.model.TopologyDef;
import org.apache.storm.flux.parser.FluxParser;
import org.apache.storm.flux.wrappers.bolts.FluxShellBolt;
import org.apache.storm.generated.KillOptions;
import org.apache.storm.generated.RebalanceOptions;
import org.apache.storm.shade.org.apache.zookeeper.server.NIOServerCnxnFactory;
import org.apache.storm.shade.org.apache.zookeeper.server.ZooKeeperServer;
import org.apache.storm.task.OutputCollector;
import org.apache.storm.task.TopologyContext;

/**
 * Runs the topology of a Flux YAML file in a local cluster, until its standard input says `stop` or ends.
 *
 *     java -Djava.io.tmpdir=DIRECTORY -cp CLASSPATH LocalStorm topology.yaml
 *
 * It prints `ready: topology=NAME` when the topology is submitted. Each line of standard input is then a command, and
 * is answered by a line, `ok` or `error: TEXT`:
 *
 *     activate
 *     deactivate
 *     rebalance [COMPONENT=EXECUTORS ...]
 *     stop [SECONDS]      deactivate, wait so long for tuples in flight, and end
 *
 * A component whose process ends unexpectedly ends the cluster, with exit code 1 or more, because Storm's worker is this process.
 */
public final class LocalStorm {
    private static final int SLOTS = 4; // workers that a topology can have; they are threads of this process
    private static final int CONNECTIONS = 100; // of one address to ZooKeeper; Storm's own parts have a few each
    private static final long CLEANUP_SECONDS = 15; // in which the components' processes store their progress

    // Flux's model lacks two setters, of which SnakeYAML warns although it reads the fields in another way.
    private static final Logger SNAKEYAML = Logger.getLogger("org.yaml.snakeyaml");

    /**
     * A bolt whose process ends the cluster when it dies, as in a worker of a real cluster.
     *
     * In local mode Storm's own waits for the next tuple until it ends. As long as none comes, it writes one error
     * after another, which has filled a disk.
     */
    public static final class EndingShellBolt extends FluxShellBolt {
        public EndingShellBolt(String[] command) {
            super(command);
        }

        public EndingShellBolt(String[] command, String[] outputFields) {
            super(command, outputFields);
        }

        @Override
        public void prepare(Map<String, Object> config, TopologyContext context, OutputCollector collector) {
            Map<String, Object> distributed = new HashMap<>(config);
            distributed.put(Config.STORM_CLUSTER_MODE, "distributed");
            super.prepare(distributed, context, collector);
        }
    }

    private final LocalCluster cluster;
    private final String name;

    private LocalStorm(LocalCluster cluster, String name) {
        this.cluster = cluster;
        this.name = name;
    }

    public static void main(String[] arguments) {
        SNAKEYAML.setLevel(Level.OFF);
        try {
            run(arguments[0]);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1); // threads of Storm would keep the process alive
        }
        System.exit(0);
    }

    private static void run(String file) throws Exception {
        TopologyDef topology = FluxParser.parseFile(file, false, true, new Properties(), false);
        Config config = FluxBuilder.buildConfig(topology);
        int zookeeper = startZooKeeper();
        LocalCluster.Builder builder = new LocalCluster.Builder()
            .withSupervisors(1)
            .withPortsPerSupervisor(SLOTS)
            .withDaemonConf(Config.STORM_ZOOKEEPER_SERVERS, List.of("127.0.0.1"))
            .withDaemonConf(Config.STORM_ZOOKEEPER_PORT, zookeeper)
            .withDaemonConf(Config.SUPERVISOR_WORKER_SHUTDOWN_SLEEP_SECS, 1)
            .withDaemonConf(Config.TOPOLOGY_ENABLE_MESSAGE_TIMEOUTS, true);
        for (BoltDef bolt : topology.getBolts()) {
            if (bolt.getClassName().equals(FluxShellBolt.class.getName())) {
                bolt.setClassName(EndingShellBolt.class.getName());
            }
        }
        try (LocalCluster cluster = builder.build()) {
            var built = FluxBuilder.buildTopology(new ExecutionContext(topology, config));
            cluster.submitTopology(topology.getName(), config, built);
            System.out.println("ready: topology=" + topology.getName());
            new LocalStorm(cluster, topology.getName()).obey(new BufferedReader(new InputStreamReader(System.in)));
        }
        awaitComponents();
        System.out.println("ok");
    }

    /** Returns the port. Storm's own in-process ZooKeeper would listen at all of this machine's addresses. */
    private static int startZooKeeper() throws Exception {
        File directory = Files.createTempDirectory("zookeeper").toFile();
        NIOServerCnxnFactory factory = new NIOServerCnxnFactory();
        factory.configure(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), CONNECTIONS, -1, false);
        factory.startup(new ZooKeeperServer(directory, directory, ZooKeeperServer.DEFAULT_TICK_TIME));
        return factory.getLocalPort();
    }

    private void obey(BufferedReader commands) throws Exception {
        for (String line; (line = commands.readLine()) != null; ) {
            String[] words = line.trim().split("\\s+");
            if (words[0].equals("stop")) {
                stop(words.length > 1 ? Integer.parseInt(words[1]) : 0);
                return;
            }
            try {
                obey(words);
                System.out.println("ok");
            } catch (Exception error) {
                System.out.println("error: " + String.valueOf(error).replace('\n', ' '));
            }
        }
        stop(0);
    }

    private void obey(String[] words) throws Exception {
        switch (words[0]) {
            case "activate" -> cluster.activate(name);
            case "deactivate" -> cluster.deactivate(name);
            case "rebalance" -> rebalance(words);
            default -> throw new IllegalArgumentException("no such command: " + words[0]);
        }
    }

    private void rebalance(String[] words) throws Exception {
        RebalanceOptions options = new RebalanceOptions();
        options.set_wait_secs(0);
        for (int at = 1; at < words.length; at++) {
            String[] parts = words[at].split("=", 2);
            options.put_to_num_executors(parts[0], Integer.parseInt(parts[1]));
        }
        cluster.rebalance(name, options);
    }

    private void stop(int seconds) throws Exception {
        // Storm reports each process that ends as an error, also those that it ends itself.
        Configurator.setAllLevels(LogManager.getRootLogger().getName(), org.apache.logging.log4j.Level.OFF);
        KillOptions options = new KillOptions();
        options.set_wait_secs(seconds);
        cluster.killTopologyWithOpts(name, options);
        while (cluster.getClusterInfo().get_topologies_size() > 0) {
            Thread.sleep(50);
        }
    }

    private static void awaitComponents() throws InterruptedException {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(CLEANUP_SECONDS);
        while (ProcessHandle.current().children().findAny().isPresent() && System.nanoTime() < end) {
            Thread.sleep(20);
        }
    }
}
