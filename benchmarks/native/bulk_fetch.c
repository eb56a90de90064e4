/* bulk_fetch TOPIC MESSAGES name=value...
 *
 * Reads MESSAGES from the beginning of partition 0. The clock runs from the first message to the last. Prints the
 * seconds and the payload bytes. */
#include "kafka.h"

enum { BATCH = 1000 };
enum { WAIT_MS = 200 }; /* a batch call waits so long for a full batch: only at the very end can it come to that */

int main(int argc, char **argv) {
    if (argc < 3) die("usage: bulk_fetch TOPIC MESSAGES name=value...");
    long wanted = atol(argv[2]), got = 0;
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    configure(conf, argc - 3, argv + 3);
    rd_kafka_t *rk = client(RD_KAFKA_CONSUMER, conf);
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_list_add(list, argv[1], 0);
    rd_kafka_topic_partition_list_set_offset(list, argv[1], 0, 0);
    if (rd_kafka_assign(rk, list)) die("the partition could not be assigned");
    rd_kafka_queue_t *queue = rd_kafka_queue_get_consumer(rk);

    static rd_kafka_message_t *messages[BATCH];
    uint64_t start = 0, last = now_ns(), bytes = 0;
    while (got < wanted) {
        long left = wanted - got;
        size_t room = got == 0 ? 1 : left < BATCH ? (size_t)left : BATCH;
        ssize_t count = rd_kafka_consume_batch_queue(queue, WAIT_MS, messages, room);
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
    rd_kafka_topic_partition_list_destroy(list);
    rd_kafka_consumer_close(rk);
    rd_kafka_destroy(rk);
    return 0;
}
