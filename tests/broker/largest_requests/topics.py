"""The largest requests about topics and settings."""

from tests.broker.largest_requests.case import SOME, case, names, topics


def to_create(number, partitions=1, configs=()):
    topic_fields = {"num_partitions": partitions, "replication_factor": 1, "assignments": (), "configs": configs}
    return [topic_fields | {"name": name} for name in names(number)]


@case("CreateTopics", most=SOME)
def validate_topics(world, number):
    return {"topics": to_create(number), "timeout": 1_000, "validate_only": True}


@case("CreateTopics", most=SOME)
def create_topics(world, number):
    return {"topics": to_create(number), "timeout": 1_000, "validate_only": False}


@case("CreateTopics", 4)
def create_topics_without_names(world, number):
    return {"topics": [topic | {"name": ""} for topic in to_create(number)], "timeout": 1_000, "validate_only": False}


@case("CreateTopics")
def create_a_topic_with_many_settings(world, number):
    configs = [{"name": "retention.ms", "value": "1000"}] * number
    return {"topics": to_create(1, configs=configs), "timeout": 1_000, "validate_only": True}


@case("CreateTopics")
def create_a_topic_with_many_assignments(world, number):
    assignments = [{"partition_index": index, "broker_ids": [1]} for index in range(number)]
    topic = {"num_partitions": -1, "replication_factor": -1, "assignments": assignments, "configs": (), "name": "wide"}
    return {"topics": [topic], "timeout": 1_000, "validate_only": True}


@case("CreatePartitions", most=SOME)
def create_partitions(world, number):
    requested = [{"name": name, "count": 2, "assignments": None} for name in topics(world, number)]
    return {"topics": requested, "timeout": 1_000, "validate_only": False}


@case("CreatePartitions", most=SOME)
def create_partitions_of_unknown_topics(world, number):
    requested = [{"name": name, "count": 2, "assignments": None} for name in names(number)]
    return {"topics": requested, "timeout": 1_000, "validate_only": False}


@case("CreatePartitions")
def create_assigned_partitions(world, number):
    world.broker.create("one")
    assignments = [{"broker_ids": [1]}] * number
    requested = [{"name": "one", "count": number + 1, "assignments": assignments}]
    return {"topics": requested, "timeout": 1_000, "validate_only": True}


@case("DeleteTopics", 5, most=SOME)
def delete_unknown_topics(world, number):
    return {"topic_names": names(number), "timeout": 1_000}


@case("DeleteTopics", most=SOME)
def delete_topics(world, number):
    requested = [{"name": name, "topic_id": None} for name in topics(world, number)]
    return {"topics": requested, "timeout": 1_000}


@case("DescribeConfigs", most=SOME)
def describe_configs(world, number):
    requested = [{"resource_type": 2, "resource_name": name} for name in topics(world, number)]
    return {"resources": requested, "include_synonyms": True, "include_documentation": True}


@case("DescribeConfigs", most=SOME)
def describe_configs_of_unknown_topics(world, number):
    return {"resources": [{"resource_type": 2, "resource_name": name} for name in names(number)]}


@case("DescribeConfigs")
def describe_many_settings_of_a_topic(world, number):
    resource = {"resource_type": 2, "resource_name": world.topic, "configuration_keys": names(number)}
    return {"resources": [resource]}


def resources(topic_names, **config):
    configs = [{"name": "retention.ms", "value": "1000"} | config]
    return {"resources": [{"resource_type": 2, "resource_name": name, "configs": configs} for name in topic_names]}


@case("AlterConfigs", most=SOME)
def alter_configs(world, number):
    return resources(topics(world, number)) | {"validate_only": False}


@case("AlterConfigs", most=SOME)
def validate_configs(world, number):
    return resources(topics(world, number)) | {"validate_only": True}


@case("IncrementalAlterConfigs", most=SOME)
def alter_configs_incrementally(world, number):
    return resources(topics(world, number), config_operation=0) | {"validate_only": False}


@case("IncrementalAlterConfigs", most=SOME)
def alter_configs_of_unknown_topics(world, number):
    return resources(names(number), config_operation=0) | {"validate_only": False}


@case("IncrementalAlterConfigs")
def append_to_a_list(world, number):
    values = ",".join(names(number))
    changes = [{"name": "cleanup.policy", "config_operation": 2, "value": values[:32_000]}]
    return {"resources": [{"resource_type": 2, "resource_name": world.topic, "configs": changes}]}


@case("IncrementalAlterConfigs")
def alter_many_settings_of_a_topic(world, number):
    changes = [{"name": name, "config_operation": 1, "value": None} for name in names(number)]
    return {"resources": [{"resource_type": 2, "resource_name": world.topic, "configs": changes}]}


@case("IncrementalAlterConfigs")
def alter_many_settings_of_the_broker(world, number):
    changes = [{"name": name, "config_operation": 0, "value": "1"} for name in names(number)]
    return {"resources": [{"resource_type": 4, "resource_name": "", "configs": changes}]}


@case("ListConfigResources", most=SOME)
def list_config_resources(world, number):
    topics(world, number)
    return {"resource_types": []}


@case("ListConfigResources")
def list_config_resources_of_many_types(world, number):
    return {"resource_types": [2] * number}
