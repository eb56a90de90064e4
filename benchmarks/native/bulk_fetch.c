/* bulk_fetch assign|subscribe TOPIC MESSAGES name=value...
 *
 * Reads MESSAGES from the beginning of partition 0, by librdkafka with the given settings. The clock runs from the
 * first message to the last. Prints the seconds and the payload bytes.
 *
 * assign takes the partition without a group, and a thousand messages with each call. subscribe joins the group, and
 * takes one message with each call, as most applications do. */
#include "kafka.h"

enum { BATCH = 1000 };
enum { WAIT_MS = 200 }; /* a batch call waits this long for a full batch, which happens only at the very end */

static rd_kafka_message_t *messages[BATCH];

static void assign(rd_kafka_t *rk, const char *topic) {
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_list_add(list, topic, 0);
    rd_kafka_topic_partition_list_set_offset(list, topic, 0, 0);
    if (rd_kafka_assign(rk, list)) die("the partition could not be assigned");
    rd_kafka_topic_partition_list_destroy(list);
}

static ssize_t take_one(rd_kafka_t *rk) {
    messages[0] = rd_kafka_consumer_poll(rk, WAIT_MS);
    return messages[0] != NULL;
}

int main(int argc, char **argv) {
    if (argc < 4) die("usage: bulk_fetch assign|subscribe TOPIC MESSAGES name=value...");
    int subscribes = !strcmp(argv[1], "subscribe");
    long wanted = atol(argv[3]), got = 0;
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    configure(conf, argc - 4, argv + 4);
    rd_kafka_t *rk = client(RD_KAFKA_CONSUMER, conf);
    if (subscribes) subscribe(rk, argv[2]);
    else assign(rk, argv[2]);
    rd_kafka_queue_t *queue = rd_kafka_queue_get_consumer(rk);

    uint64_t start = 0, last = now_ns(), bytes = 0;
    while (got < wanted) {
        long left = wanted - got;
        size_t room = got == 0 ? 1 : left < BATCH ? (size_t)left : BATCH;
        ssize_t count = subscribes ? take_one(rk) : rd_kafka_consume_batch_queue(queue, WAIT_MS, messages, room);
        if (count > 0) last = now_ns();
        else if (now_ns() - last > 30000000000u) die("nothing came for 30 s after %ld messages", got);
        if (!start && count > 0) start = last;
        for (ssize_t i = 0; i < count; i++) {
            if (messages[i]->err) die("%s", rd_kafka_err2str(messages[i]->err));
            if (messages[i]->offset != got) die("offset %ld came where %ld was due", (long)messages[i]->offset, got);
            bytes += messages[i]->len;
            got++;
            rd_kafka_message_destroy(messages[i]);
        }
    }
    printf("%.6f %llu\n", (double)(last - start) / 1e9, (unsigned long long)bytes);
    rd_kafka_queue_destroy(queue);
    rd_kafka_consumer_close(rk);
    rd_kafka_destroy(rk);
    return 0;
}
