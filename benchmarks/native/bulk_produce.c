/* bulk_produce TOPIC PARTITIONS MESSAGES SIZE name=value...
 *
 * Produces MESSAGES of SIZE bytes as fast as librdkafka takes them, round robin over the partitions, and waits for
 * every delivery report. SIZE is a number, or LEAST-MOST for sizes that vary from message to message. The clock starts when each partition has acknowledged a message, so that connecting is not timed.
 * Prints the seconds. */
#include "kafka.h"

static long delivered, failed;

static void on_delivery(rd_kafka_t *rk, const rd_kafka_message_t *message, void *opaque) {
    (void)rk, (void)opaque;
    delivered++;
    if (message->err && !failed++) fprintf(stderr, "not delivered: %s\n", rd_kafka_err2str(message->err));
}

static void send_one(rd_kafka_t *rk, rd_kafka_topic_t *topic, int32_t partition, char *payload, size_t size) {
    while (rd_kafka_produce(topic, partition, 0, payload, size, NULL, 0, NULL)) {
        if (rd_kafka_last_error() != RD_KAFKA_RESP_ERR_QUEUE_FULL) die("%s", rd_kafka_err2str(rd_kafka_last_error()));
        rd_kafka_poll(rk, 10);
    }
}

static void wait_for(rd_kafka_t *rk, long wanted) {
    uint64_t end = now_ns() + 120000000000u;
    while (delivered < wanted) {
        rd_kafka_poll(rk, 100);
        if (now_ns() > end) die("%ld of %ld messages were acknowledged within 120 s", delivered, wanted);
    }
}

int main(int argc, char **argv) {
    if (argc < 5) die("usage: bulk_produce TOPIC PARTITIONS MESSAGES SIZE name=value...");
    int partitions = atoi(argv[2]);
    long messages = atol(argv[3]);
    size_t least = (size_t)atol(argv[4]), size = least;
    if (strchr(argv[4], '-')) size = (size_t)atol(strchr(argv[4], '-') + 1);
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    rd_kafka_conf_set_dr_msg_cb(conf, on_delivery);
    configure(conf, argc - 5, argv + 5);
    rd_kafka_t *rk = client(RD_KAFKA_PRODUCER, conf);
    rd_kafka_topic_t *topic = rd_kafka_topic_new(rk, argv[1], NULL);
    char *payload = malloc(size);
    for (size_t i = 0; i < size; i++) payload[i] = (char)('a' + i % 26);

    for (int partition = 0; partition < partitions; partition++) send_one(rk, topic, partition, payload, size);
    wait_for(rk, partitions);
    uint64_t start = now_ns();
    for (long i = 0; i < messages; i++) {
        size_t bytes = least + (size_t)(i * 7919) % (size - least + 1); /* a prime, so that neighbours differ */
        send_one(rk, topic, (int32_t)(i % partitions), payload, bytes);
        if (i % 1024 == 0) rd_kafka_poll(rk, 0);
    }
    rd_kafka_flush(rk, 0); /* send what lingers */
    wait_for(rk, partitions + messages);
    printf("%.6f\n", (double)(now_ns() - start) / 1e9);
    rd_kafka_topic_destroy(topic);
    rd_kafka_destroy(rk);
    return failed ? 1 : 0;
}
