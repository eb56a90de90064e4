import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.BooleanSupplier;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.quota.ClientQuotaAlteration;
import org.apache.kafka.common.quota.ClientQuotaEntity;
import org.apache.kafka.common.quota.ClientQuotaFilter;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.Exit;

/**
 * Apache Kafka's Java clients and command-line tools, which take calls as lines of JSON on stdin. One process serves
 * many tests, because starting Java takes longer than most tests.
 *
 * <p>{"do": NAME, ...} is answered by {"result": ...}, or by {"error": class, "message": ...} if the client throws.
 * NAME is a method of Clients, Members or AdminCalls below, or "tool", which runs a tool's main and answers
 * {"exit", "stdout", "stderr"}.
 */
public class Stock {
    static final ObjectMapper JSON = new ObjectMapper();
    static final Duration POLL = Duration.ofMillis(100);
    static final int SECONDS = 100;

    public static void main(String[] unused) throws Exception {
        PrintStream answers = System.out;
        BufferedReader questions = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Tools.takeTheStreams();
        for (String line = questions.readLine(); line != null; line = questions.readLine()) {
            answers.println(JSON.writeValueAsString(answer(JSON.readTree(line))));
            answers.flush();
        }
    }

    static Map<String, Object> answer(JsonNode call) {
        String name = call.get("do").asText();
        Map<String, Object> answer = new HashMap<>();
        try {
            answer.put("result", name.equals("tool") ? Tools.run(call) : run(name, call));
        } catch (Throwable thrown) {
            Throwable cause = thrown;
            while (cause.getCause() != null
                    && (cause instanceof ExecutionException || cause instanceof InvocationTargetException)) {
                cause = cause.getCause();
            }
            answer.put("error", cause.getClass().getSimpleName());
            answer.put("message", String.valueOf(cause.getMessage()));
        }
        return answer;
    }

    static Object run(String name, JsonNode call) throws Exception {
        for (Class<?> each : List.of(Clients.class, Members.class)) {
            for (var method : each.getDeclaredMethods()) {
                if (method.getName().equals(name)) {
                    return method.invoke(null, call);
                }
            }
        }
        try (Admin admin = Admin.create(config(call))) {
            return AdminCalls.class.getDeclaredMethod(name, Admin.class, JsonNode.class).invoke(null, admin, call);
        }
    }

    /** Returns the client's config: the address, overridden by the call's "config". */
    static Map<String, Object> config(JsonNode call) {
        Map<String, Object> config = new HashMap<>(Map.of("bootstrap.servers", call.get("address").asText()));
        config.putAll(map(call.path("config")));
        return config;
    }

    static Map<String, String> map(JsonNode object) {
        Map<String, String> map = new HashMap<>();
        object.properties().forEach(each -> map.put(each.getKey(), each.getValue().asText()));
        return map;
    }

    static List<String> texts(JsonNode array) {
        List<String> texts = new ArrayList<>();
        array.forEach(each -> texts.add(each.asText()));
        return texts;
    }

    static <T> T get(Future<T> future) throws Exception {
        return future.get(SECONDS, TimeUnit.SECONDS);
    }

    static TopicPartition partition(JsonNode call) {
        return new TopicPartition(call.get("topic").asText(), call.path("partition").asInt(0));
    }

    static void until(BooleanSupplier there, String what) throws TimeoutException {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(SECONDS);
        while (!there.getAsBoolean()) {
            if (System.nanoTime() > end) {
                throw new TimeoutException(what);
            }
        }
    }
}

/** Producers and consumers without a group; each call opens a client and closes it. */
class Clients {
    /** Produces "values" to "topic" (and "partition") with keys "key-n"; returns [[partition, offset], ...]. */
    static Object produce(JsonNode call) throws Exception {
        try (Producer<byte[], byte[]> producer = producer(call)) {
            return send(producer, call);
        }
    }

    private static final Map<String, Producer<byte[], byte[]>> kept = new TreeMap<>();

    /** Produces as "produce" does, with the producer "name", which stays open between calls. */
    static Object produceOn(JsonNode call) throws Exception {
        return send(kept.computeIfAbsent(call.get("name").asText(), name -> producer(call)), call);
    }

    /** Closes the producer "name". */
    static Object closeProducer(JsonNode call) {
        kept.remove(call.get("name").asText()).close();
        return null;
    }

    /** Produces "values" and commits "offsets" [{topic, partition, offset}] of "group"; aborts if "commit" is false. */
    static Object transaction(JsonNode call) throws Exception {
        try (Producer<byte[], byte[]> producer = producer(call)) {
            producer.initTransactions();
            producer.beginTransaction();
            Object sent = send(producer, call);
            if (call.has("offsets")) {
                sendOffsets(producer, call);
            }
            if (call.path("commit").asBoolean(true)) {
                producer.commitTransaction();
            } else {
                producer.flush();
                producer.abortTransaction();
            }
            return sent;
        }
    }

    /** Sends offsets as a consumer that assigned its partitions itself, without a member id and a generation. */
    private static void sendOffsets(Producer<byte[], byte[]> producer, JsonNode call) {
        Map<String, Object> config = Map.of("bootstrap.servers", call.get("address").asText(),
                "group.id", call.get("group").asText());
        var bytes = new ByteArrayDeserializer();
        try (Consumer<byte[], byte[]> consumer = new KafkaConsumer<>(config, bytes, bytes)) {
            for (JsonNode each : call.get("offsets")) {
                var offset = new OffsetAndMetadata(each.get("offset").asLong(), "from a transaction");
                producer.sendOffsetsToTransaction(Map.of(Stock.partition(each), offset), consumer.groupMetadata());
            }
        }
    }

    /** Starts a second producer with the first one's transactional id; returns the exception of the first's commit. */
    static Object fencedTransaction(JsonNode call) throws Exception {
        try (Producer<byte[], byte[]> first = producer(call); Producer<byte[], byte[]> second = producer(call)) {
            first.initTransactions();
            first.beginTransaction();
            send(first, call);
            second.initTransactions();
            try {
                first.commitTransaction();
                return null;
            } catch (KafkaException expected) {
                return expected.getClass().getSimpleName();
            }
        }
    }

    /** Leaves a transaction open, as a producer that dies does. */
    static Object leaveTransactionOpen(JsonNode call) throws Exception {
        Producer<byte[], byte[]> producer = producer(call);
        producer.initTransactions();
        producer.beginTransaction();
        Object sent = send(producer, call);
        producer.close(Duration.ZERO);
        return sent;
    }

    static Producer<byte[], byte[]> producer(JsonNode call) {
        return new KafkaProducer<>(Stock.config(call), new ByteArraySerializer(), new ByteArraySerializer());
    }

    /** Sends the values to "partition", to "spread" partitions in turn from 0, or to where the partitioner says. */
    private static Object send(Producer<byte[], byte[]> producer, JsonNode call) throws Exception {
        String topic = call.get("topic").asText();
        Integer only = call.has("partition") ? call.get("partition").asInt() : null;
        int spread = call.path("spread").asInt(0);
        Long timestamp = call.has("timestamp") ? call.get("timestamp").asLong() : null;
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (String value : Stock.texts(call.get("values"))) {
            byte[] key = ("key-" + sent.size()).getBytes(StandardCharsets.UTF_8);
            Integer partition = spread > 0 ? Integer.valueOf(sent.size() % spread) : only;
            var record = new ProducerRecord<>(topic, partition, timestamp, key, value.getBytes(StandardCharsets.UTF_8));
            record.headers().add("number", Integer.toString(sent.size()).getBytes(StandardCharsets.UTF_8));
            sent.add(producer.send(record));
        }
        producer.flush();
        List<Object> answers = new ArrayList<>();
        for (Future<RecordMetadata> each : sent) {
            RecordMetadata metadata = Stock.get(each);
            answers.add(List.of(metadata.partition(), metadata.offset()));
        }
        return answers;
    }

    /** Reads "count" records of a partition from "offset" (written in "epoch"), "time", or its beginning. */
    static Object read(JsonNode call) throws Exception {
        try (Consumer<byte[], byte[]> consumer = consumer(call)) {
            TopicPartition partition = Stock.partition(call);
            consumer.assign(List.of(partition));
            if (call.has("time")) {
                var found = consumer.offsetsForTimes(Map.of(partition, call.get("time").asLong())).get(partition);
                consumer.seek(partition, found.offset());
            } else if (call.has("epoch")) {
                var epoch = Optional.of(call.get("epoch").asInt());
                consumer.seek(partition, new OffsetAndMetadata(call.get("offset").asLong(), epoch, ""));
            } else if (call.has("offset")) {
                consumer.seek(partition, call.get("offset").asLong());
            } else {
                consumer.seekToBeginning(List.of(partition));
            }
            int count = call.get("count").asInt();
            List<Object> records = new ArrayList<>();
            Stock.until(() -> {
                consumer.poll(Stock.POLL).forEach(each -> records.add(record(each)));
                return records.size() >= count;
            }, count + " records");
            return records;
        }
    }

    /** Returns a partition's offsets {"begin", "end", "by_time"}; "by_time" is null if no record is that late. */
    static Object ends(JsonNode call) {
        try (Consumer<byte[], byte[]> consumer = consumer(call)) {
            TopicPartition partition = Stock.partition(call);
            var found = consumer.offsetsForTimes(Map.of(partition, call.path("time").asLong())).get(partition);
            Map<String, Object> ends = new HashMap<>();
            ends.put("begin", consumer.beginningOffsets(List.of(partition)).get(partition));
            ends.put("end", consumer.endOffsets(List.of(partition)).get(partition));
            ends.put("by_time", found == null ? null : found.offset());
            return ends;
        }
    }

    static Consumer<byte[], byte[]> consumer(JsonNode call) {
        return new KafkaConsumer<>(Stock.config(call), new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    static Map<String, Object> record(ConsumerRecord<byte[], byte[]> record) {
        Map<String, Object> fields = new HashMap<>();
        fields.put("offset", record.offset());
        fields.put("timestamp", record.timestamp());
        fields.put("key", record.key() == null ? null : new String(record.key(), StandardCharsets.UTF_8));
        fields.put("value", record.value() == null ? null : new String(record.value(), StandardCharsets.UTF_8));
        Map<String, String> headers = new TreeMap<>();
        for (Header each : record.headers()) {
            headers.put(each.key(), new String(each.value(), StandardCharsets.UTF_8));
        }
        fields.put("headers", headers);
        return fields;
    }
}

/** Named group members that stay between calls. They are polled in turn, because a rebalance needs all members. */
class Members {
    private static final Map<String, Consumer<byte[], byte[]>> members = new TreeMap<>();

    /** Adds a member "name" of the group in "config", which subscribes to "topic". */
    static Object join(JsonNode call) {
        Consumer<byte[], byte[]> consumer = Clients.consumer(call);
        consumer.subscribe(List.of(call.get("topic").asText()));
        members.put(call.get("name").asText(), consumer);
        return null;
    }

    /** Polls the member "name" once; returns its partitions. */
    static Object assigned(JsonNode call) {
        Consumer<byte[], byte[]> member = members.get(call.get("name").asText());
        member.poll(Stock.POLL);
        return member.assignment().stream().map(TopicPartition::partition).sorted().collect(Collectors.toList());
    }

    /** Polls until the members "names" share all "partitions" equally; returns {name: partitions}. */
    static Object share(JsonNode call) throws Exception {
        List<String> names = Stock.texts(call.get("names"));
        int partitions = call.get("partitions").asInt();
        Stock.until(() -> {
            names.forEach(name -> members.get(name).poll(Stock.POLL));
            return names.stream().allMatch(name -> members.get(name).assignment().size() == partitions / names.size());
        }, partitions + " partitions shared by " + names);
        Map<String, Object> shares = new TreeMap<>();
        for (String name : names) {
            var assigned = members.get(name).assignment().stream().map(TopicPartition::partition).sorted();
            shares.put(name, assigned.collect(Collectors.toList()));
        }
        return shares;
    }

    /** Returns "count" records that the members "names" read in total; each member then commits. */
    static Object take(JsonNode call) throws Exception {
        List<String> names = Stock.texts(call.get("names"));
        List<Object> records = new ArrayList<>();
        Stock.until(() -> {
            for (String name : names) {
                members.get(name).poll(Stock.POLL).forEach(each -> records.add(Clients.record(each)));
            }
            return records.size() >= call.get("count").asInt();
        }, call.get("count") + " records");
        names.forEach(name -> members.get(name).commitSync());
        return records;
    }

    /** Closes the member "name", which leaves its group. */
    static Object leave(JsonNode call) {
        members.remove(call.get("name").asText()).close();
        return null;
    }
}

/** Calls of the admin client: each method makes one call and returns its answer, as JSON. */
class AdminCalls {
    static Object describeCluster(Admin admin, JsonNode call) throws Exception {
        DescribeClusterResult result = admin.describeCluster();
        List<Object> nodes = new ArrayList<>();
        for (Node each : Stock.get(result.nodes())) {
            nodes.add(Map.of("id", each.id(), "address", each.host() + ":" + each.port()));
        }
        return Map.of(
                "cluster", Stock.get(result.clusterId()),
                "controller", Stock.get(result.controller()).id(),
                "nodes", nodes);
    }

    static Object describeFeatures(Admin admin, JsonNode call) throws Exception {
        FeatureMetadata features = Stock.get(admin.describeFeatures().featureMetadata());
        Map<String, Object> finalized = new TreeMap<>();
        features.finalizedFeatures().forEach((name, range) -> finalized.put(name, range.maxVersionLevel()));
        Map<String, Object> supported = new TreeMap<>();
        features.supportedFeatures().forEach((name, range) -> supported.put(name, range.maxVersion()));
        return Map.of("finalized", finalized, "supported", supported);
    }

    /** Creates "topic" with "partitions" and "configs"; returns {"partitions", "replication", "configs"}. */
    static Object createTopic(Admin admin, JsonNode call) throws Exception {
        String name = call.get("topic").asText();
        NewTopic topic = new NewTopic(name, Optional.of(call.path("partitions").asInt(1)), Optional.empty());
        var options = new CreateTopicsOptions().validateOnly(call.path("validate").asBoolean(false));
        CreateTopicsResult result = admin.createTopics(List.of(topic.configs(Stock.map(call.path("configs")))), options);
        Stock.get(result.all());
        Map<String, Object> answer = new HashMap<>();
        answer.put("partitions", Stock.get(result.numPartitions(name)));
        answer.put("replication", Stock.get(result.replicationFactor(name)));
        answer.put("configs", entries(Stock.get(result.config(name))));
        return answer;
    }

    static Object createPartitions(Admin admin, JsonNode call) throws Exception {
        var more = NewPartitions.increaseTo(call.get("partitions").asInt());
        return Stock.get(admin.createPartitions(Map.of(call.get("topic").asText(), more)).all());
    }

    static Object deleteTopics(Admin admin, JsonNode call) throws Exception {
        return Stock.get(admin.deleteTopics(Stock.texts(call.get("topics"))).all());
    }

    static Object listTopics(Admin admin, JsonNode call) throws Exception {
        return Stock.get(admin.listTopics().names()).stream().sorted().collect(Collectors.toList());
    }

    static Object describeTopic(Admin admin, JsonNode call) throws Exception {
        String name = call.get("topic").asText();
        TopicDescription topic = Stock.get(admin.describeTopics(List.of(name)).allTopicNames()).get(name);
        List<Object> partitions = new ArrayList<>();
        for (TopicPartitionInfo each : topic.partitions()) {
            partitions.add(Map.of(
                    "partition", each.partition(), "leader", each.leader().id(), "replicas", ids(each.replicas()),
                    "isr", ids(each.isr())));
        }
        return Map.of("id", topic.topicId().toString(), "internal", topic.isInternal(), "partitions", partitions);
    }

    /** Returns the authorized operations on "topic", on "group" and on the cluster (KIP-430). */
    static Object authorizedOperations(Admin admin, JsonNode call) throws Exception {
        String topic = call.get("topic").asText();
        String group = call.get("group").asText();
        var topics = admin.describeTopics(
                List.of(topic), new DescribeTopicsOptions().includeAuthorizedOperations(true));
        var groups = admin.describeConsumerGroups(
                List.of(group), new DescribeConsumerGroupsOptions().includeAuthorizedOperations(true));
        var cluster = admin.describeCluster(new DescribeClusterOptions().includeAuthorizedOperations(true));
        return Map.of(
                "topic", names(Stock.get(topics.allTopicNames()).get(topic).authorizedOperations()),
                "group", names(Stock.get(groups.all()).get(group).authorizedOperations()),
                "cluster", names(Stock.get(cluster.authorizedOperations())));
    }

    private static List<String> names(Set<AclOperation> operations) {
        return operations.stream().map(Enum::name).sorted().collect(Collectors.toList());
    }

    private static List<Integer> ids(Collection<Node> nodes) {
        return nodes.stream().map(Node::id).collect(Collectors.toList());
    }

    /** Returns {config: {"value", "source", "readOnly", "type", "documented", "synonyms"}} of "type" and "name". */
    static Object describeConfigs(Admin admin, JsonNode call) throws Exception {
        var options = new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true);
        return entries(Stock.get(admin.describeConfigs(List.of(resource(call)), options).all()).get(resource(call)));
    }

    private static ConfigResource resource(JsonNode call) {
        return new ConfigResource(ConfigResource.Type.valueOf(call.get("type").asText()), call.get("name").asText());
    }

    private static Map<String, Object> entries(Config config) {
        Map<String, Object> entries = new TreeMap<>();
        for (ConfigEntry each : config.entries()) {
            Map<String, Object> entry = new HashMap<>();
            entry.put("value", each.value());
            entry.put("source", each.source().name());
            entry.put("readOnly", each.isReadOnly());
            entry.put("type", String.valueOf(each.type()));
            entry.put("documented", each.documentation() != null);
            var synonyms = each.synonyms().stream().map(synonym -> synonym.source().name());
            entry.put("synonyms", synonyms.collect(Collectors.toList()));
            entries.put(each.name(), entry);
        }
        return entries;
    }

    /** Applies "changes": [[operation, name, value], ...]. */
    static Object alterConfigs(Admin admin, JsonNode call) throws Exception {
        Collection<AlterConfigOp> changes = new ArrayList<>();
        for (JsonNode each : call.get("changes")) {
            var entry = new ConfigEntry(each.get(1).asText(), each.get(2).isNull() ? null : each.get(2).asText());
            changes.add(new AlterConfigOp(entry, AlterConfigOp.OpType.valueOf(each.get(0).asText())));
        }
        return Stock.get(admin.incrementalAlterConfigs(Map.of(resource(call), changes)).all());
    }

    /** Returns a partition's offsets: {"earliest", "latest", "max_timestamp", "time"}. */
    static Object listOffsets(Admin admin, JsonNode call) throws Exception {
        TopicPartition partition = Stock.partition(call);
        Map<String, OffsetSpec> specs = new TreeMap<>(Map.of(
                "earliest", OffsetSpec.earliest(), "latest", OffsetSpec.latest(),
                "max_timestamp", OffsetSpec.maxTimestamp(),
                "time", OffsetSpec.forTimestamp(call.path("time").asLong(0))));
        Map<String, Object> offsets = new TreeMap<>();
        for (var each : specs.entrySet()) {
            var found = admin.listOffsets(Map.of(partition, each.getValue())).partitionResult(partition);
            offsets.put(each.getKey(), Stock.get(found).offset());
        }
        return offsets;
    }

    /** Deletes the records before the offset "before"; returns the low watermark. */
    static Object deleteRecords(Admin admin, JsonNode call) throws Exception {
        TopicPartition partition = Stock.partition(call);
        var before = RecordsToDelete.beforeOffset(call.get("before").asLong());
        var deleted = admin.deleteRecords(Map.of(partition, before)).lowWatermarks().get(partition);
        return Stock.get(deleted).lowWatermark();
    }

    static Object listGroups(Admin admin, JsonNode call) throws Exception {
        Map<String, Object> groups = new TreeMap<>();
        for (GroupListing each : Stock.get(admin.listGroups().all())) {
            String state = each.groupState().map(Object::toString).orElse("");
            groups.put(each.groupId(), List.of(each.type().map(Object::toString).orElse(""), each.protocol(), state));
        }
        return groups;
    }

    static Object describeGroup(Admin admin, JsonNode call) throws Exception {
        String name = call.get("group").asText();
        ConsumerGroupDescription group =
                Stock.get(admin.describeConsumerGroups(List.of(name)).all()).get(name);
        List<Object> members = new ArrayList<>();
        for (MemberDescription each : group.members()) {
            List<Integer> partitions = each.assignment().topicPartitions().stream()
                    .map(TopicPartition::partition).sorted().collect(Collectors.toList());
            members.add(Map.of("client", each.clientId(), "host", each.host(), "partitions", partitions));
        }
        return Map.of(
                "state", group.groupState().toString(), "assignor", group.partitionAssignor(), "members", members,
                "coordinator", group.coordinator().id());
    }

    /** Returns {"topic-partition": offset}. */
    static Object groupOffsets(Admin admin, JsonNode call) throws Exception {
        Map<String, Object> offsets = new TreeMap<>();
        var found = admin.listConsumerGroupOffsets(call.get("group").asText()).partitionsToOffsetAndMetadata();
        Stock.get(found).forEach((partition, offset) -> offsets.put(partition.toString(), offset.offset()));
        return offsets;
    }

    static Object alterGroupOffset(Admin admin, JsonNode call) throws Exception {
        var offset = Map.of(Stock.partition(call), new OffsetAndMetadata(call.get("offset").asLong()));
        return Stock.get(admin.alterConsumerGroupOffsets(call.get("group").asText(), offset).all());
    }

    static Object deleteGroupOffset(Admin admin, JsonNode call) throws Exception {
        var partitions = Set.of(Stock.partition(call));
        return Stock.get(admin.deleteConsumerGroupOffsets(call.get("group").asText(), partitions).all());
    }

    static Object deleteGroup(Admin admin, JsonNode call) throws Exception {
        return Stock.get(admin.deleteConsumerGroups(List.of(call.get("group").asText())).all());
    }

    /** Returns {directory: {"topic-partition": size}} of the node "node". */
    static Object describeLogDirs(Admin admin, JsonNode call) throws Exception {
        int node = call.get("node").asInt();
        Map<String, Object> directories = new TreeMap<>();
        Stock.get(admin.describeLogDirs(List.of(node)).allDescriptions()).get(node).forEach((path, directory) -> {
            Map<String, Object> replicas = new TreeMap<>();
            directory.replicaInfos().forEach((partition, info) -> replicas.put(partition.toString(), info.size()));
            directories.put(path, replicas);
        });
        return directories;
    }

    static Object electLeaders(Admin admin, JsonNode call) throws Exception {
        var partitions = Set.of(Stock.partition(call));
        var elected = Stock.get(admin.electLeaders(ElectionType.PREFERRED, partitions).partitions());
        return elected.get(Stock.partition(call)).map(each -> each.getClass().getSimpleName()).orElse(null);
    }

    /** Returns {"transactional id": state}. */
    static Object listTransactions(Admin admin, JsonNode call) throws Exception {
        Map<String, Object> states = new TreeMap<>();
        for (TransactionListing each : Stock.get(admin.listTransactions().all())) {
            states.put(each.transactionalId(), each.state().toString());
        }
        return states;
    }

    static Object describeTransaction(Admin admin, JsonNode call) throws Exception {
        String id = call.get("id").asText();
        TransactionDescription found = Stock.get(admin.describeTransactions(List.of(id)).all()).get(id);
        var partitions = found.topicPartitions().stream().map(TopicPartition::toString).sorted();
        return Map.of(
                "state", found.state().toString(), "timeout_ms", found.transactionTimeoutMs(),
                "partitions", partitions.collect(Collectors.toList()));
    }

    /** Returns the number of producers that a partition knows, and how many of them are in a transaction. */
    static Object describeProducers(Admin admin, JsonNode call) throws Exception {
        TopicPartition partition = Stock.partition(call);
        var states = Stock.get(admin.describeProducers(List.of(partition)).partitionResult(partition));
        long open = states.activeProducers().stream()
                .filter(each -> each.currentTransactionStartOffset().isPresent()).count();
        return Map.of("known", states.activeProducers().size(), "in_transaction", open);
    }

    static Object fenceProducers(Admin admin, JsonNode call) throws Exception {
        return Stock.get(admin.fenceProducers(List.of(call.get("id").asText())).all());
    }

    /** Aborts a partition's open transaction without the coordinator, as for a hanging transaction (KIP-664). */
    static Object abortTransaction(Admin admin, JsonNode call) throws Exception {
        TopicPartition partition = Stock.partition(call);
        var states = Stock.get(admin.describeProducers(List.of(partition)).partitionResult(partition));
        var open = states.activeProducers().stream()
                .filter(each -> each.currentTransactionStartOffset().isPresent()).findFirst().orElseThrow();
        var spec = new AbortTransactionSpec(
                partition, open.producerId(), (short) open.producerEpoch(), open.coordinatorEpoch().orElse(0));
        return Stock.get(admin.abortTransaction(spec).all());
    }

    static Object createAcl(Admin admin, JsonNode call) throws Exception {
        return Stock.get(admin.createAcls(List.of(acl(call))).all());
    }

    static Object deleteAcl(Admin admin, JsonNode call) throws Exception {
        return Stock.get(admin.deleteAcls(List.of(acl(call).toFilter())).all()).size();
    }

    /** Returns the rule that "user" may read "topic". */
    private static AclBinding acl(JsonNode call) {
        var topic = new ResourcePattern(ResourceType.TOPIC, call.get("topic").asText(), PatternType.LITERAL);
        String user = "User:" + call.get("user").asText();
        return new AclBinding(
                topic, new AccessControlEntry(user, "*", AclOperation.READ, AclPermissionType.ALLOW));
    }

    static Object describeAcls(Admin admin, JsonNode call) throws Exception {
        return Stock.get(admin.describeAcls(AclBindingFilter.ANY).values()).size();
    }

    static Object describeQuotas(Admin admin, JsonNode call) throws Exception {
        return Stock.get(admin.describeClientQuotas(ClientQuotaFilter.all()).entities()).size();
    }

    /** Sets the quota "name" of "user" to "rate". */
    static Object alterQuota(Admin admin, JsonNode call) throws Exception {
        var user = new ClientQuotaEntity(Map.of(ClientQuotaEntity.USER, call.get("user").asText()));
        var quota = new ClientQuotaAlteration.Op(call.get("name").asText(), call.get("rate").asDouble());
        return Stock.get(admin.alterClientQuotas(List.of(new ClientQuotaAlteration(user, List.of(quota)))).all());
    }

    static Object updateFeature(Admin admin, JsonNode call) throws Exception {
        var update = new FeatureUpdate((short) call.get("level").asInt(), FeatureUpdate.UpgradeType.UPGRADE);
        var updates = Map.of(call.get("name").asText(), update);
        return Stock.get(admin.updateFeatures(updates, new UpdateFeaturesOptions()).all());
    }

    static Object describeScram(Admin admin, JsonNode call) throws Exception {
        return Stock.get(admin.describeUserScramCredentials().all()).size();
    }

    static Object listReassignments(Admin admin, JsonNode call) throws Exception {
        return Stock.get(admin.listPartitionReassignments().reassignments()).size();
    }

    static Object listConfigResources(Admin admin, JsonNode call) throws Exception {
        return Stock.get(admin.listConfigResources().all()).stream()
                .map(each -> each.type() + " " + each.name()).sorted().collect(Collectors.toList());
    }
}

/** Runs a tool's main in this process, with separate exit, shutdown hooks and standard streams. */
class Tools {
    private static final Stream out = new Stream();
    private static final Stream err = new Stream();
    private static final List<Runnable> hooks = new ArrayList<>();
    private static Integer exitCode;

    /** Replaces the output streams once, because some tools keep the first stream that they see. */
    static void takeTheStreams() {
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
        Exit.setExitProcedure(Tools::exit);
        Exit.setHaltProcedure(Tools::exit);
        Exit.setShutdownHookAdder((name, hook) -> hooks.add(hook));
    }

    static Object run(JsonNode call) throws Exception {
        exitCode = null;
        hooks.clear();
        out.take();
        err.take();
        System.setIn(new ByteArrayInputStream(call.path("stdin").asText("").getBytes(StandardCharsets.UTF_8)));
        String[] arguments = Stock.texts(call.get("args")).toArray(new String[0]);
        try {
            Class.forName(call.get("class").asText()).getMethod("main", String[].class).invoke(null, (Object) arguments);
        } catch (InvocationTargetException thrown) {
            if (!(thrown.getCause() instanceof Exited)) {
                throw thrown;
            }
        }
        err.hear(true);
        for (Runnable each : List.copyOf(hooks)) {
            each.run();
        }
        return Map.of("exit", exitCode == null ? 0 : exitCode, "stdout", out.take(), "stderr", err.take());
    }

    /** Keeps the first exit code, because a tool may catch Exited as a failure, complain and exit again. */
    private static void exit(int code, String message) {
        exitCode = exitCode == null ? code : exitCode;
        err.hear(false);
        throw new Exited();
    }

    static class Exited extends Error {}

    static class Stream extends OutputStream {
        private final ByteArrayOutputStream written = new ByteArrayOutputStream();
        private boolean heard = true;

        synchronized void hear(boolean on) {
            heard = on;
        }

        @Override
        public synchronized void write(int value) {
            write(new byte[] {(byte) value}, 0, 1);
        }

        @Override
        public synchronized void write(byte[] bytes, int offset, int length) {
            if (heard) {
                written.write(bytes, offset, length);
            }
        }

        synchronized String take() {
            String text = written.toString(StandardCharsets.UTF_8);
            written.reset();
            return text;
        }
    }
}
