/* mock_cluster TOPIC PARTITIONS
 *
 * Runs librdkafka's mock cluster, which keeps messages in memory and validates nothing. Prints its address, and serves
 * until its standard input ends. */
#include "kafka.h"

int main(int argc, char **argv) {
    if (argc != 3) die("usage: mock_cluster TOPIC PARTITIONS");
    rd_kafka_t *rk = client(RD_KAFKA_PRODUCER, rd_kafka_conf_new());
    rd_kafka_mock_cluster_t *cluster = rd_kafka_mock_cluster_new(rk, 1);
    if (!cluster) die("no mock cluster could be made");
    int error = rd_kafka_mock_topic_create(cluster, argv[1], atoi(argv[2]), 1);
    if (error) die("%s", rd_kafka_err2str(error));
    printf("%s\n", rd_kafka_mock_cluster_bootstraps(cluster));
    fflush(stdout);
    while (getchar() != EOF) continue;
    rd_kafka_mock_cluster_destroy(cluster);
    rd_kafka_destroy(rk);
    return 0;
}
