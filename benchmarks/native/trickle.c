/* trickle TOPIC GROUP RATE MESSAGES SIZE ADDRESS PID
 *
 * A producer sends MESSAGES of SIZE bytes, RATE in a second, and a consumer of a new group reads them. Both are
 * librdkafka clients with default settings. The clock starts when the consumer has its first message, so joining the
 * group is not timed. Prints the seconds; the median and 99th percentile of the time from produce call to consumer, in
 * us; and the CPU seconds of process PID. */
#include "kafka.h"

enum { SILENCE_SECONDS = 30 };

static long failed;

static void on_delivery(rd_kafka_t *rk, const rd_kafka_message_t *message, void *opaque) {
    (void)rk, (void)opaque;
    if (message->err && !failed++) fprintf(stderr, "not delivered: %s\n", rd_kafka_err2str(message->err));
}

static void set(rd_kafka_conf_t *conf, const char *name, const char *value) {
    char error[256];
    if (rd_kafka_conf_set(conf, name, value, error, sizeof error) != RD_KAFKA_CONF_OK) die("%s", error);
}

static rd_kafka_t *new_producer(const char *address) {
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    set(conf, "bootstrap.servers", address);
    rd_kafka_conf_set_dr_msg_cb(conf, on_delivery);
    return client(RD_KAFKA_PRODUCER, conf);
}

static rd_kafka_t *new_consumer(const char *address, const char *group, const char *topic) {
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    set(conf, "bootstrap.servers", address);
    set(conf, "group.id", group);
    set(conf, "auto.offset.reset", "earliest");
    rd_kafka_t *rk = client(RD_KAFKA_CONSUMER, conf);
    subscribe(rk, topic);
    return rk;
}

/* The message begins with the time of the call. */
static void send_one(rd_kafka_topic_t *topic, char *payload, size_t size) {
    uint64_t now = now_ns();
    memcpy(payload, &now, sizeof now);
    if (rd_kafka_produce(topic, 0, RD_KAFKA_MSG_F_COPY, payload, size, NULL, 0, NULL))
        die("%s", rd_kafka_err2str(rd_kafka_last_error()));
}

/* Wait up to `wait_ms` for a message. Returns how old it is in us, or -1 when none came. */
static int64_t take_one(rd_kafka_t *consumer, int wait_ms, long due) {
    rd_kafka_message_t *message = rd_kafka_consumer_poll(consumer, wait_ms);
    uint64_t sent;
    if (!message) return -1;
    if (message->err) die("%s", rd_kafka_err2str(message->err));
    if (message->offset != due) die("offset %ld came where %ld was due", (long)message->offset, due);
    memcpy(&sent, message->payload, sizeof sent);
    rd_kafka_message_destroy(message);
    return (int64_t)(now_ns() - sent) / 1000;
}

int main(int argc, char **argv) {
    if (argc != 8) die("usage: trickle TOPIC GROUP RATE MESSAGES SIZE ADDRESS PID");
    long rate = atol(argv[3]), messages = atol(argv[4]), pid = atol(argv[7]), sent = 0, got = 0;
    size_t size = (size_t)atol(argv[5]);
    if (size < sizeof(uint64_t)) die("a message has at least %zu bytes", sizeof(uint64_t));
    char *payload = calloc(size, 1);
    rd_kafka_t *producer = new_producer(argv[6]), *consumer = new_consumer(argv[6], argv[2], argv[1]);
    rd_kafka_topic_t *topic = rd_kafka_topic_new(producer, argv[1], NULL);
    uint32_t *times = malloc((size_t)messages * sizeof *times);

    uint64_t start = now_ns(), last;
    send_one(topic, payload, size);
    while (take_one(consumer, 100, 0) < 0) {
        rd_kafka_poll(producer, 0);
        if (now_ns() > start + SILENCE_SECONDS * 1000000000ull) die("the first message did not come");
    }
    double cpu = cpu_seconds(pid);
    start = last = now_ns();
    while (got < messages) {
        uint64_t now = now_ns();
        for (; sent < messages && now >= start + (uint64_t)sent * 1000000000u / (uint64_t)rate; sent++)
            send_one(topic, payload, size);
        rd_kafka_poll(producer, 0);
        int64_t age = take_one(consumer, 1, 1 + got);
        if (age >= 0) times[got++] = (uint32_t)age, last = now;
        else if (now > last + SILENCE_SECONDS * 1000000000ull) die("nothing came after %ld messages", got);
    }
    printf("%.6f ", (double)(now_ns() - start) / 1e9);
    cpu = cpu_seconds(pid) - cpu;
    print_percentiles(times, (size_t)got);
    printf("%.2f\n", cpu);
    rd_kafka_topic_destroy(topic);
    rd_kafka_destroy(producer);
    rd_kafka_consumer_close(consumer);
    rd_kafka_destroy(consumer);
    return failed ? 1 : 0;
}
