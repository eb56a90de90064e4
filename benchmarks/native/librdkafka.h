/* The functions of librdkafka's public C API that the load programs use. The library is the one inside the
 * confluent-kafka wheel, which has no header. Its ABI is stable; see
 * https://docs.confluent.io/platform/current/clients/librdkafka/html/rdkafka_8h.html */
#ifndef FLAKELOG_LIBRDKAFKA_H
#define FLAKELOG_LIBRDKAFKA_H

#include <stdint.h>
#include <sys/types.h>

typedef struct rd_kafka_s rd_kafka_t;
typedef struct rd_kafka_conf_s rd_kafka_conf_t;
typedef struct rd_kafka_topic_s rd_kafka_topic_t;
typedef struct rd_kafka_topic_conf_s rd_kafka_topic_conf_t;
typedef struct rd_kafka_queue_s rd_kafka_queue_t;
typedef struct rd_kafka_mock_cluster_s rd_kafka_mock_cluster_t;
typedef struct rd_kafka_topic_partition_list_s rd_kafka_topic_partition_list_t;

enum { RD_KAFKA_PRODUCER = 0, RD_KAFKA_CONSUMER = 1 };
enum { RD_KAFKA_CONF_OK = 0 };
enum { RD_KAFKA_RESP_ERR_QUEUE_FULL = -184 };
enum { RD_KAFKA_MSG_F_COPY = 2 };
#define RD_KAFKA_PARTITION_UA ((int32_t)-1)

typedef struct rd_kafka_message_s {
    int err;
    rd_kafka_topic_t *rkt;
    int32_t partition;
    void *payload;
    size_t len;
    void *key;
    size_t key_len;
    int64_t offset;
    void *_private;
} rd_kafka_message_t;

typedef void rd_kafka_dr_msg_cb(rd_kafka_t *, const rd_kafka_message_t *, void *opaque);

const char *rd_kafka_err2str(int err);
int rd_kafka_last_error(void);
rd_kafka_conf_t *rd_kafka_conf_new(void);
int rd_kafka_conf_set(rd_kafka_conf_t *, const char *name, const char *value, char *errstr, size_t size);
void rd_kafka_conf_set_dr_msg_cb(rd_kafka_conf_t *, rd_kafka_dr_msg_cb *);
rd_kafka_t *rd_kafka_new(int type, rd_kafka_conf_t *, char *errstr, size_t size);
void rd_kafka_destroy(rd_kafka_t *);
int rd_kafka_poll(rd_kafka_t *, int timeout_ms);
int rd_kafka_flush(rd_kafka_t *, int timeout_ms);

rd_kafka_topic_t *rd_kafka_topic_new(rd_kafka_t *, const char *topic, rd_kafka_topic_conf_t *);
void rd_kafka_topic_destroy(rd_kafka_topic_t *);
int rd_kafka_produce(rd_kafka_topic_t *, int32_t partition, int flags, void *payload, size_t len, const void *key,
                     size_t key_len, void *opaque);

rd_kafka_topic_partition_list_t *rd_kafka_topic_partition_list_new(int size);
void *rd_kafka_topic_partition_list_add(rd_kafka_topic_partition_list_t *, const char *topic, int32_t partition);
int rd_kafka_topic_partition_list_set_offset(rd_kafka_topic_partition_list_t *, const char *topic, int32_t partition,
                                             int64_t offset);
void rd_kafka_topic_partition_list_destroy(rd_kafka_topic_partition_list_t *);
int rd_kafka_subscribe(rd_kafka_t *, const rd_kafka_topic_partition_list_t *);
rd_kafka_message_t *rd_kafka_consumer_poll(rd_kafka_t *, int timeout_ms);
int rd_kafka_assign(rd_kafka_t *, const rd_kafka_topic_partition_list_t *);
rd_kafka_queue_t *rd_kafka_queue_get_consumer(rd_kafka_t *);
void rd_kafka_queue_destroy(rd_kafka_queue_t *);
ssize_t rd_kafka_consume_batch_queue(rd_kafka_queue_t *, int timeout_ms, rd_kafka_message_t **, size_t size);
void rd_kafka_message_destroy(rd_kafka_message_t *);
int rd_kafka_consumer_close(rd_kafka_t *);

rd_kafka_mock_cluster_t *rd_kafka_mock_cluster_new(rd_kafka_t *, int brokers);
void rd_kafka_mock_cluster_destroy(rd_kafka_mock_cluster_t *);
const char *rd_kafka_mock_cluster_bootstraps(const rd_kafka_mock_cluster_t *);
int rd_kafka_mock_topic_create(rd_kafka_mock_cluster_t *, const char *topic, int partitions, int replication);

#endif
