/* Making librdkafka clients. */
#ifndef FLAKELOG_KAFKA_H
#define FLAKELOG_KAFKA_H

#include "common.h"
#include "librdkafka.h"

/* Apply settings of the form "name=value". */
static inline void configure(rd_kafka_conf_t *conf, int count, char **settings) {
    char error[256];
    for (int i = 0; i < count; i++) {
        char *sign = strchr(settings[i], '=');
        if (!sign) die("%s: must be name=value", settings[i]);
        *sign = 0;
        if (rd_kafka_conf_set(conf, settings[i], sign + 1, error, sizeof error) != RD_KAFKA_CONF_OK) die("%s", error);
    }
}

static inline rd_kafka_t *client(int type, rd_kafka_conf_t *conf) {
    char error[256];
    rd_kafka_t *made = rd_kafka_new(type, conf, error, sizeof error);
    if (!made) die("%s", error);
    return made;
}

static inline void subscribe(rd_kafka_t *rk, const char *topic) {
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_list_add(list, topic, RD_KAFKA_PARTITION_UA);
    if (rd_kafka_subscribe(rk, list)) die("%s cannot be subscribed to", topic);
    rd_kafka_topic_partition_list_destroy(list);
}

#endif
